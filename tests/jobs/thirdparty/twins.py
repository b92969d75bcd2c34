"""A job that runs twice, without us and as a user would have it with us, and what must be equal or recorded."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from deploy.native.ports import free_port
from otel_torchdist.judge.stall.events import Event, VerdictGiven
from otel_torchdist.judge.stall.watch import StallWatch
from otel_torchdist.judge.verdict.rules import StallRules
from otel_torchdist.model.kinds import TapeState
from otel_torchdist.model.reports.finding import Finding
from otel_torchdist.tape.reading.reader import TapeReader
from otel_torchdist.telemetry import semconv
from tests.jobs.thirdparty.issued import REPORTS
from tests.support.commands.running import kill_processes_of, processes_of
from tests.support.launch.forked_ranks import ORDINARY_END
from tests.support.launch.quiet import QUIET
from tests.support.launch.stderr import comparable
from tests.support.launch.warm_python import Done, WarmPython
from tests.support.profiled import names_of
from tests.support.receivers.otlp_receiver import OtlpReceiver, ReceivedSpan
from tests.support.tapes.recorded import RecordedTape, read_tapes
from tests.support.waiting import until

WORKERS = Path(__file__).parent / "workers"
THRESHOLD_S = 5.0
"""No operation of these jobs waits for so long."""
JOB_S = 150.0
AGENT_LEAVES_S = 20.0
ENDS_ORDINARILY: Final = {ORDINARY_END: "true"}
"""For one process of each job: it takes a second of a core, as all that it shares with others is copied for that."""
SECOND = 1_000_000_000
_REPORTED = (VerdictGiven, Finding)


_LOGGED: Final = re.compile(r"^\[\d+\] \S+ \S+ - root - INFO - .*\n", re.MULTILINE)


@dataclass(frozen=True)
class Trained:
    """A job that is over.

    Attributes:
        ranks: Its processes, by rank; a single one if that has started the others.
        reports: The final reports of its ranks, by rank.
        tapes: What was recorded.
        spans: What was exported.
        log: What the agent has logged.
        afterwards: What a watch reports that reads the tapes when the job is over.
        directory: Base directory of the tapes.
    """

    ranks: list[Done]
    reports: list[dict[str, Any]]
    tapes: list[RecordedTape]
    spans: list[ReceivedSpan]
    log: str
    afterwards: list[Event]
    directory: Path

    def tapes_of_the_first_run(self) -> list[RecordedTape]:
        """The tapes of the run that began first, by rank."""
        first = min(self.tapes, key=lambda tape: tape.identity.monotonic_ns)
        return [tape for tape in self.tapes if tape.status.run_id == first.status.run_id]


@dataclass(frozen=True)
class Twins:
    """The same job, without us and with us."""

    without_us: Trained
    with_us: Trained

    def assert_training_is_untouched(self) -> None:
        """Losses, parameters, exit codes and standard errors are equal; no operation was added."""
        assert self.without_us.tapes == []
        assert [rank.code for rank in self.with_us.ranks] == [rank.code for rank in self.without_us.ranks]
        for with_us, without_us in zip(self.with_us.reports, self.without_us.reports, strict=True):
            assert with_us == without_us
            assert len(with_us["losses"]) > 1
        for with_us, without_us in zip(self.with_us.ranks, self.without_us.ranks, strict=True):
            assert _unlogged(with_us.err) == _unlogged(without_us.err), (with_us.err, without_us.err)

    def assert_nothing_is_wrong(self, tapes: Sequence[RecordedTape] = ()) -> None:
        """No stall and no finding, neither while it ran nor afterwards, and no error of ours.

        Args:
            tapes: Tapes whose ranks have ended by themselves; all if not given.
        """
        assert [span.name for span in self.with_us.spans if span.name.startswith(("stall", "finding"))] == []
        assert self.with_us.afterwards == []
        for word in ("internal error", "Traceback", "WARNING", "ERROR"):
            assert word not in self.with_us.log, self.with_us.log
        assert [
            tape.failure for tape in tapes or self.with_us.tapes if tape.status.state is not TapeState.FINISHED
        ] == []

    def assert_everything_is_recorded(self, tapes: Sequence[RecordedTape] = ()) -> None:
        """What torch's profiler counted without us is on the tapes, has ended, and has been exported.

        Args:
            tapes: Tapes of the ranks that have reported; all if not given.
        """
        for report, tape in zip(self.without_us.reports, tapes or self.with_us.tapes, strict=True):
            assert tape.lost == 0
            names = Counter(operation.name for operation in tape.operations)
            assert names == names_of(report["issued"])
            assert [one for one in tape.operations if not one.has_ended and one.raw.waiting_since_ns is not None] == []
            assert len(tape.steps) == report["steps"]
        recorded = Counter((tape.identity.rank, one.name) for tape in self.with_us.tapes for one in tape.operations)
        exported = Counter((span.attributes.get(semconv.RANK), span.name) for span in self.with_us.spans)
        assert {key: count for key, count in exported.items() if key in recorded} == recorded


class TwinRunner:
    """Runs jobs twice."""

    def __init__(self, python: WarmPython) -> None:
        self._python = python
        self._folders: list[Path] = []

    def run(self, worker: str, ranks: int = 2, *arguments: str) -> Twins:
        """Run a worker script without us and with us.

        Args:
            worker: Its name, without suffix. Its first argument is a directory of its own.
            ranks: Size of the job; 0 for a script that starts ranks itself.
            *arguments: Its other arguments.
        """
        with ThreadPoolExecutor(2) as pool:
            runs = pool.map(lambda is_with_us: self._run(is_with_us, worker, ranks, *arguments), (False, True))
            return Twins(*runs)

    def _run(self, is_with_us: bool, worker: str, ranks: int, *arguments: str) -> Trained:
        folder = self.new_folder()
        with Observed(folder) as observed:
            common = {**environment_of(folder), **(observed.environ if is_with_us else {})}
            environs = [{**common, **rank} for rank in places(ranks)] or [common | ENDS_ORDINARILY]
            files = folder / "files"
            done = self._python.run(WORKERS / f"{worker}.py", environs, folder, [str(files), *arguments], JOB_S)
            which = "with us" if is_with_us else "without us"
            ends = (f"{which}, rank {rank}: exit code {one.code}\n{one.err}" for rank, one in enumerate(done))
            assert {one.code for one in done} == {0}, "\n".join(ends)
            return observed.trained(done)

    def new_folder(self) -> Path:
        """A directory that is removed with the fixture."""
        folder = Path(tempfile.mkdtemp(prefix="otel-torchdist-test-", dir="/dev/shm"))
        self._folders.append(folder)
        return folder

    def clean_up(self) -> None:
        """Remove the files of all jobs."""
        for folder in self._folders:
            shutil.rmtree(folder)


def places(ranks: int) -> list[dict[str, str]]:
    """What torchrun would set for each rank."""
    size = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "GROUP_RANK": "0", "TORCHELASTIC_RUN_ID": "twin"}
    ranked = [{**size, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)]
    return [first | ENDS_ORDINARILY for first in ranked[:1]] + ranked[1:]


def environment_of(folder: Path) -> dict[str, str]:
    """What torchrun would set for all, and what keeps libraries from probing their environment."""
    for name in ("files", "tapes", "reports"):
        (folder / name).mkdir(mode=0o700)
    return {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "ACCELERATE_USE_CPU": "true",
        "HF_HUB_OFFLINE": "1",
        "OTEL_PYTHON_TORCHDIST_TAPE_DIR": str(folder / "tapes"),
        REPORTS: str(folder / "reports"),
    }


class Observed:
    """What a job prints, exports and leaves behind.

    Attributes:
        environ: Switches us on with default settings, except that the agent leaves soon.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._tapes = folder / "tapes"
        self._receiver = OtlpReceiver()

    def __enter__(self) -> Observed:
        self._receiver.start()
        self.environ = {
            **QUIET,
            "OTEL_PYTHON_TORCHDIST_READER": "agent",
            # The default logs at INFO that there is no native library, and some of these programs show INFO.
            "OTEL_PYTHON_TORCHDIST_CAPTURE": "python",
            "OTEL_PYTHON_TORCHDIST_AGENT_LINGER": "0",
            "OTEL_PYTHON_TORCHDIST_STALL_TIMEOUT": str(round(THRESHOLD_S * 1000)),
            "OTEL_PYTHON_TORCHDIST_SPAN_BUDGET": "1000000",
            "OTEL_TRACES_EXPORTER": "otlp",
            "OTEL_EXPORTER_OTLP_ENDPOINT": self._receiver.endpoint,
            "OTEL_EXPORTER_OTLP_PROTOCOL": self._receiver.protocol,
        }
        return self

    def __exit__(self, *error: object) -> None:
        kill_processes_of(self._tapes)
        self._receiver.stop()

    def trained(self, done: Sequence[Done]) -> Trained:
        """Collect everything once the ranks have ended, and the agent has left."""
        until(lambda: not processes_of(self._tapes), AGENT_LEAVES_S, "the agent does not leave")
        reports = [json.loads(path.read_text()) for path in sorted((self._folder / "reports").iterdir())]
        log = "".join(path.read_text() for path in self._tapes.rglob("agent.log*"))
        return Trained(
            ranks=list(done),
            reports=reports,
            tapes=read_tapes(self._tapes),
            spans=self._receiver.spans(),
            log=log,
            afterwards=seen_afterwards(self._tapes),
            directory=self._tapes,
        )


def seen_afterwards(directory: Path) -> list[Event]:
    """What a watch reports that reads the tapes of a job that is over, and keeps polling for a minute."""
    watch = StallWatch(StallRules(round(THRESHOLD_S * 1e9)))
    readers = [TapeReader(path) for path in directory.rglob("*.tape")]
    for reader in readers:
        watch.follow(reader)
        watch.observe(reader.identity.nonce, reader.poll())
    now_ns = time.monotonic_ns()
    found = [event for second in range(60) for event in watch.check(now_ns + second * SECOND)]
    for reader in readers:
        reader.close()
    return [event for event in found if isinstance(event, _REPORTED)]


def _unlogged(stderr: str) -> list[str]:
    """Standard error without the logs of DCP's checkpoint process: times, ports and identifiers, new each time."""
    return comparable(_LOGGED.sub("", stderr))
