"""A file switches recording off in a running job, and on again; the job does not notice."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from otel_torchdist.model.kinds import RunIdState, TapeState
from otel_torchdist.telemetry import semconv
from tests.agent.training import page_of
from tests.jobs.torchrun.recording import TWO_RANKS, notices, switched_on
from tests.support.commands.asking import ask
from tests.support.launch.torchrun import Torchrun
from tests.support.launch.warm_python import Done, WarmPython
from tests.support.native.native_library import KERNELS, environ_of
from tests.support.receivers.otlp_receiver import OtlpReceiver
from tests.support.tapes.recorded import RecordedTape, read_tapes
from tests.support.waiting import until

WORKER = Path(__file__).parent / "workers" / "goes_on.py"
OBEYS_S = 3.0
"""The promise is two seconds; a second more for a busy machine."""


@dataclass(frozen=True)
class Job:
    """A training whose ranks communicate until the file `finish` appears."""

    torchrun: Torchrun
    folder: Path

    @property
    def base(self) -> Path:
        """The base directory of its tapes."""
        return self.folder / "tapes"

    @property
    def off(self) -> Path:
        """The file that switches recording off on the node."""
        return self.folder / "off"

    def tapes(self) -> list[RecordedTape]:
        """Its tapes."""
        return read_tapes(self.base)

    def do(self, name: str) -> None:
        """Have rank 0 do something, and wait until it has."""
        (self.folder / name).touch()
        until(lambda: (self.folder / name.replace("hang", "hung")).exists(), 60, lambda: self.torchrun.log)

    def wait_for_new_tapes(self, number: int) -> list[RecordedTape]:
        """Return the tapes, once `number` tapes have an agreed run id and operations."""

        def are_there() -> list[RecordedTape]:
            tapes = self.tapes()
            are_ready = len(tapes) == number and all(tape.status.run_id_state is RunIdState.AGREED for tape in tapes)
            return tapes if are_ready and all(len(tape.operations) > 20 for tape in tapes) else []

        return until(are_there, 60, lambda: self.torchrun.log)

    def switch_off(self, file: Path) -> list[RecordedTape]:
        """Switch recording off; return the tapes once all of them say so. Fail if that takes too long."""
        file.touch()
        until(lambda: all(tape.status.switched_off_ns for tape in self.tapes()), OBEYS_S, lambda: self.torchrun.log)
        return self.tapes()

    def finish(self) -> Done:
        """Let the training end."""
        (self.folder / "finish").touch()
        return self.torchrun.end()


@pytest.fixture(params=[*KERNELS])
def job(request: pytest.FixtureRequest, warm_python: WarmPython, tmp_path: Path) -> Iterator[Job]:
    """A recorded job with an agent, on each kernel."""
    environ = {
        **switched_on(tmp_path / "tapes"),
        **environ_of(request.param),
        "OTEL_PYTHON_TORCHDIST_AGENT_LINGER": "3000",
        "OTEL_PYTHON_TORCHDIST_STALL_TIMEOUT": "1500",
        "OTEL_PYTHON_TORCHDIST_OFF_FILE": str(tmp_path / "off"),
        "OTEL_METRICS_EXPORTER": "prometheus",
    }
    torchrun = Torchrun(warm_python, tmp_path / "output", [*TWO_RANKS, WORKER, tmp_path], environ)
    try:
        yield Job(torchrun, tmp_path)
    finally:
        torchrun.close()


@pytest.fixture(scope="module")
def weights(warm_python: WarmPython, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Reports of the ranks without the package."""
    folder = tmp_path_factory.mktemp("without")
    (folder / "finish").touch()
    return reports(Torchrun(warm_python, folder / "output", [*TWO_RANKS, WORKER, folder], {}).end())


def reports(done: Done) -> list[str]:
    """Return the reports of the ranks; fail if the job has failed."""
    assert done.code == 0, done.err
    return [line["weights"] for line in sorted(done.lines(), key=lambda line: line["rank"])]


def log_of_agent(base: Path) -> str:
    """The log of the job's agents."""
    return "".join(path.read_text() for path in base.rglob("agent.log"))


def test_off_and_on(job: Job, weights: list[str]) -> None:
    """Ranks obey in time, record nothing while off, and a new run when on again. No verdict, same weights, exit 0."""
    job.wait_for_new_tapes(2)
    until(lambda: re.search(r"^torchdist_recording_state\{.*\} 1\.0$", page_of(job.base), re.MULTILINE), 30)
    first = job.switch_off(job.off)
    assert all(tape.status.state is TapeState.FINISHED and not tape.failure for tape in first)
    until(
        lambda: len(re.findall(r"^torchdist_recording_state\{.*\} 0\.0$", page_of(job.base), re.MULTILINE)) == 2,
        3, lambda: page_of(job.base),
    )  # fmt: skip
    assert "recording was switched off" in ask(job.base).out

    job.do("hang-off")  # longer than the threshold of a stall
    assert [len(tape.operations) for tape in job.tapes()] == [len(tape.operations) for tape in first]
    assert job.torchrun.poll() is None

    job.off.unlink()
    tapes = job.wait_for_new_tapes(4)
    second = [tape for tape in tapes if not tape.status.switched_off_ns]
    assert len({tape.status.run_id for tape in second}) == 1
    assert {tape.status.run_id for tape in second}.isdisjoint({tape.status.run_id for tape in first})
    assert not any(operation.group.aligned for tape in second for operation in tape.operations)

    done = job.finish()
    assert reports(done) == weights
    assert done.err.count("recording is switched off on this node") == 1
    assert done.err.count("recording is switched on again") == 1
    assert notices(done.err) == 0
    log = log_of_agent(job.base)
    said = re.findall(r"recording was switched off .*", log)
    agents = log.count(
        "INFO reading "
    )  # the first may have ended before recording began again; the next reads all runs
    assert len(set(said)) == 1 and len(said) <= agents
    assert "has not entered" not in log
    tapes = [tape for tape in job.tapes() if not tape.status.switched_off_ns]
    assert all(tape.status.state is TapeState.FINISHED and tape.named("all_reduce") for tape in tapes)


def test_off_during_a_stall(job: Job, weights: list[str]) -> None:
    """A stall that began before the switch gets no verdict after it; the file of one user does it, too."""
    job.wait_for_new_tapes(2)
    (job.folder / "hang-at-once").touch()
    time.sleep(0.3)
    job.switch_off(job.base / "off")
    done = job.finish()
    assert reports(done) == weights
    assert notices(done.err) == 0
    assert len(job.tapes()) == 2


def test_off_before_the_start(warm_python: WarmPython, tmp_path: Path, weights: list[str]) -> None:
    """A job that starts while recording is off is left alone until it ends, with one line that says why."""
    environ = switched_on(tmp_path / "tapes")
    (tmp_path / "tapes" / "off").touch()
    (tmp_path / "finish").touch()
    done = Torchrun(warm_python, tmp_path / "output", [*TWO_RANKS, WORKER, tmp_path], environ).end()
    assert reports(done) == weights
    assert done.err.count("is off in this process until it ends") == 1
    assert read_tapes(tmp_path / "tapes") == []


@pytest.mark.thorough
@pytest.mark.parametrize("reader", ["thread", "none"])
def test_without_an_agent(warm_python: WarmPython, tmp_path: Path, weights: list[str], reader: str) -> None:
    """With a thread as the reader, or none, ranks obey alike, a thread reports no stall, and exports both runs."""
    with contextlib.ExitStack() as stack:
        receiver = stack.enter_context(OtlpReceiver())
        environ = {
            **switched_on(tmp_path / "tapes"),
            **environ_of("python"),
            "OTEL_PYTHON_TORCHDIST_READER": reader,
            "OTEL_PYTHON_TORCHDIST_STALL_TIMEOUT": "1500",
            "OTEL_PYTHON_TORCHDIST_OFF_FILE": str(tmp_path / "off"),
            "OTEL_TRACES_EXPORTER": "otlp",
            "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint,
            "OTEL_EXPORTER_OTLP_PROTOCOL": receiver.protocol,
        }
        torchrun = Torchrun(warm_python, tmp_path / "output", [*TWO_RANKS, WORKER, tmp_path], environ)
        stack.callback(torchrun.close)
        job = Job(torchrun, tmp_path)
        job.wait_for_new_tapes(2)
        first = {f"{tape.status.run_id:032x}"[:8] for tape in job.switch_off(job.off)}
        job.do("hang-off")  # longer than the threshold of a stall
        job.off.unlink()
        tapes = job.wait_for_new_tapes(4)
        both = first | {f"{tape.status.run_id:032x}"[:8] for tape in tapes}
        done = job.finish()
        spans = [span for span in receiver.spans() if span.name == "all_reduce"]
        stalls = [span for span in receiver.spans() if span.name.startswith("stall: ")]
    assert reports(done) == weights
    assert len(both) == 2
    assert {str(span.attributes[semconv.RUN]) for span in spans} == (both if reader == "thread" else set())
    assert stalls == []
    assert done.err.count("recording is switched off on this node") == 1
    assert notices(done.err) == 0
    assert "no verdict" in ask(job.base).out


@pytest.mark.thorough
@pytest.mark.parametrize("kernel", KERNELS)
def test_switched_again_and_again(warm_python: WarmPython, tmp_path: Path, kernel: str) -> None:
    """Calls of all kinds on several threads go on while recording is switched; none of our errors occurs."""
    off = tmp_path / "off"
    environ = {
        **switched_on(tmp_path / "tapes"),
        **environ_of(kernel),
        "OTEL_PYTHON_TORCHDIST_OFF_FILE": str(off),
        "OTEL_PYTHON_TORCHDIST_STALL_TIMEOUT": "3000",
    }
    worker = WORKER.with_name("many_kinds.py")
    done = Torchrun(warm_python, tmp_path / "output", [*TWO_RANKS, worker, off], environ).end()
    assert done.code == 0, done.err
    assert all(line["finite"] and line["others"] for line in done.lines())
    assert notices(done.err) == 0
    assert "error" not in done.err.lower(), done.err
    tapes = read_tapes(tmp_path / "tapes")
    assert len([tape for tape in tapes if tape.status.switched_off_ns]) >= 4
    assert "Traceback" not in log_of_agent(tmp_path / "tapes")
