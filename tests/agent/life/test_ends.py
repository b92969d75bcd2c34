"""A whole job ends at once, or jobs follow each other: the agent reports everything and leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from otel_torchdist.telemetry import semconv
from tests.agent.conftest import JOB
from tests.agent.life.test_life import check_once_without_orphans, count_on, recorded, up_on
from tests.agent.own_agent import OwnAgent
from tests.agent.training import environment, page_of
from tests.cli.gloo_jobs import GlooJobs
from tests.jobs.torchrun.recording import WORKERS
from tests.support.commands.running import processes_of
from tests.support.launch.quiet import QUIET
from tests.support.launch.warm_python import WarmPython
from tests.support.ranks.job_ranks import Ranks
from tests.support.receivers.otlp_metrics_receiver import http_receiver
from tests.support.receivers.otlp_receiver import OtlpReceiver, ReceivedSpan
from tests.support.tapes.recorded import read_tapes
from tests.support.waiting import until

RANKS = 4
WAITING = {0, 1, 3}


@pytest.fixture
def job(warm_python: WarmPython, base: Path, receiver: OtlpReceiver, tmp_path: Path) -> Iterator[GlooJobs]:
    """Four ranks on gloo, three of which wait in a collective for the fourth, with the agent that they start."""
    environ = {
        "OTEL_PYTHON_TORCHDIST_STALL_TIMEOUT": "1000",
        "OTEL_PYTHON_TORCHDIST_AGENT_LINGER": "2000",
        "OTEL_TRACES_EXPORTER": "otlp",
        "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint,
    }
    job = GlooJobs(warm_python, base, tmp_path, "is late", ranks=RANKS, reader="agent", environ=environ)
    yield job
    job.close()


def markers(spans: list[ReceivedSpan]) -> set[int]:
    """The ranks that were reported to be in the collective."""
    return {span.attributes[semconv.RANK] for span in spans if span.name == "all_reduce (in progress)"}


def incidents(spans: list[ReceivedSpan]) -> list[ReceivedSpan]:
    """The incident, from its verdict on, which may come after the markers."""
    return [span for span in spans if span.name.startswith("stall: all_reduce")]


def test_operations_in_flight_at_the_kill(begin: Callable[..., Ranks], base: Path) -> None:
    """All ranks are killed within an operation: its spans are exported once, and say so, beside those that ended."""
    ranks = begin(2)
    with contextlib.closing(OwnAgent(base / JOB)) as own:
        ranks.meet(1)
        for rank in range(2):
            ranks.send(rank, "enter 2")
        own.turn_until(lambda: own.values("torchdist_up") == [1.0, 1.0])
        for rank in range(2):
            ranks.kill(rank)
        own.turn_until(lambda: own.values("torchdist_up") == [0.0, 0.0])
    assert own.exported("all_reduce") == [(rank, sequence) for rank in range(2) for sequence in (1, 2)]
    errors = {span.attributes[semconv.SEQUENCE]: span.error for span in own.sink.spans if span.name == "all_reduce"}
    assert errors == {1: None, 2: "all_reduce was still in progress when the process was gone"}


@pytest.mark.thorough
def test_four_ranks_are_killed(job: GlooJobs, base: Path, receiver: OtlpReceiver) -> None:
    """Markers, the incident and all its operations arrive, with those in flight at the kill; then the agent exits."""
    receiver.wait_for(lambda spans: markers(spans) == WAITING and bool(incidents(spans)), 120.0)
    job.kill()
    page = until(lambda: page if up_on(page := page_of(base)).count("} 0.0") == RANKS else "")
    counts = count_on(page, "all_reduce")
    until(lambda: not processes_of(base))
    spans = receiver.spans()
    check_once_without_orphans(spans)
    entered = {
        tape.identity.rank: sum(operation.name == "all_reduce" for operation in tape.operations)
        for tape in read_tapes(base)
    }
    assert recorded(spans, "all_reduce") == entered
    assert sorted(entered.values()) == counts
    cut = [span for span in spans if span.name == "all_reduce" and span.attributes.get(semconv.STALLED)]
    assert {span.attributes[semconv.RANK] for span in cut} == WAITING
    assert all("the process was gone" in (span.error or "") for span in cut)
    [root, *_] = incidents(spans)
    bars = {span.name.partition(":")[0] for span in spans if span.parent_id == root.span_id}
    assert bars == {f"rank {rank}" for rank in range(RANKS)}


NAMESPACES = shutil.which("unshare") and not subprocess.run(["unshare", "--pid", "--fork", "true"]).returncode
AN_HOUR_MS = 3_600_000
FIRST_PROCESS = ["sh", "-c", '"$@"; sleep 2', "sh", sys.executable, "-m", "torch.distributed.run"]


@pytest.mark.thorough
@pytest.mark.skipif(not NAMESPACES, reason="this user cannot make PID namespaces")
def test_verdict_leaves_a_container(base: Path, receiver: OtlpReceiver) -> None:
    """The agent is killed with the first process of the container, an hour before the next interval."""
    with http_receiver() as metrics:
        environ = environment(base, receiver) | {
            "OTEL_METRICS_EXPORTER": "otlp",
            "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL": "http/protobuf",
            "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": f"{metrics.endpoint}/v1/metrics",
            "OTEL_METRIC_EXPORT_INTERVAL": str(AN_HOUR_MS),
        }
        job = ["--standalone", "--nproc-per-node=2", str(WORKERS / "crashes.py"), "1"]
        command = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", *FIRST_PROCESS, *job]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120)
        assert metrics.wait(), done.stderr
        received = metrics.metrics()
        [ended] = received["torchdist.attempt_ended.info"].gauge.data_points
        found = {one.key: one.value.string_value for one in ended.attributes}
        assert (found["torchdist.verdict"], found["torchdist.ranks"]) == ("dead", "1")
        names = {span.name for span in receiver.spans()}
        assert "stall: all_reduce (dead)" in names


JOBS = 8
KEPT = 3
WORKER = Path(__file__).parents[1] / "workers" / "short.py"


@pytest.mark.thorough
def test_many_jobs_leave_nothing(warm_python: WarmPython, memory: Path) -> None:
    """Eight jobs, each with its own agent, leave no process, no port and no more files than should be kept."""
    tapes, temporary = memory / "tapes", memory / "tmp"
    temporary.mkdir()
    for job in range(JOBS):
        environ = {
            **QUIET,
            "OTEL_PYTHON_TORCHDIST_READER": "agent",
            "OTEL_PYTHON_TORCHDIST_AGENT_LINGER": "0",
            "OTEL_PYTHON_TORCHDIST_TAPE_DIR": str(tapes),
            "OTEL_PYTHON_TORCHDIST_KEEP_RUNS": str(KEPT),
            "TMPDIR": str(temporary),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(job),  # distinguishes the jobs; the store is a file
        }
        [done] = warm_python.run(WORKER, [environ], memory, [str(memory / f"store-{job}")], 60.0)
        assert (done.code, done.err) == (0, "")
    until(lambda: not processes_of(tapes), 40)
    assert [os.listdir(path) for path in tapes.glob("job-*") if not (path / "agent.checkpoint").exists()] == []
    assert os.listdir(tapes / "prometheus") == os.listdir(temporary) == []
    jobs = [path for path in tapes.iterdir() if path.name != "prometheus"]
    assert len(jobs) <= KEPT + 1  # the last agent was still in its own directory
    logs = [(path / "agent.log").read_text() for path in jobs]
    assert all("all ranks have ended; everything they recorded was exported" in log for log in logs), logs
    assert not [line for log in logs for line in log.splitlines() if " WARNING " in line or " ERROR " in line]
