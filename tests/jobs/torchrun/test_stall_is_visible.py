"""A late rank, as seen from outside: by a real OTLP receiver and a real scrape, while it hangs and after."""

from __future__ import annotations

import re
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path

import pytest

from deploy.native.ports import free_port
from otel_torchdist.agent.log_relay import LOG_NAME
from tests.support.commands.running import is_agent, processes_of
from tests.support.launch.torchrun import Torchrun
from tests.support.launch.warm_python import WarmPython
from tests.support.native.native_library import environ_of
from tests.support.receivers.otlp_receiver import GRPC, HTTP, OtlpReceiver, ReceivedSpan
from tests.support.waiting import lag_s, until

RANKS = 3
THRESHOLD_S = 5.0
"""The job stalls as soon as it has begun, and an agent needs a moment to start."""
LATE = 2
WORKER = Path(__file__).parent / "workers" / "late_rank.py"
LATE_LINE = next(n for n, line in enumerate(WORKER.read_text().splitlines(), 1) if "time.sleep" in line)


@dataclass
class Job:
    """A running job with its gate: the late rank goes on when the gate is removed."""

    base: Path
    torchrun: Torchrun
    gate: Path
    receiver: OtlpReceiver
    port: int

    def logs(self) -> str:
        """The output of torchrun and its ranks, and the logs of agents: a job that never began has no spans either."""
        return "\n".join([self.torchrun.log, *(path.read_text() for path in self.base.rglob(LOG_NAME))])

    def scrape(self) -> str:
        """The ranks' /metrics pages, one after the other."""
        pages = []
        for port in range(self.port, self.port + 16):
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
                    pages.append(answer.read().decode())
            except (OSError, HTTPException):  # or a connection from a free port to itself, which answers the request
                continue
        return "\n".join(pages)

    def wait_for_metric(self, pattern: str, timeout_s: float) -> re.Match[str]:
        """The first match of a pattern in the pages; fails if it does not come in time."""
        return until(lambda: re.search(pattern, self.scrape(), re.MULTILINE), timeout_s, self.scrape)


@pytest.fixture(params=[(GRPC, "python"), pytest.param((HTTP, "native"), marks=pytest.mark.thorough)], ids="-".join)
def job(request: pytest.FixtureRequest, warm_python: WarmPython, memory: Path, tmp_path: Path) -> Iterator[Job]:
    """A job of three ranks under torchrun, switched on by the environment only, with its OTLP receiver."""
    gate = tmp_path / "gate"
    gate.touch()
    first_port = free_port(16)
    protocol, kernel = request.param
    with OtlpReceiver(protocol) as receiver:
        environment = {
            "OMP_NUM_THREADS": "1",
            "OTEL_PYTHON_TORCHDIST_ENABLED": "true",
            "OTEL_PYTHON_TORCHDIST_TAPE_DIR": str(memory),
            "OTEL_PYTHON_TORCHDIST_STALL_TIMEOUT": str(int(THRESHOLD_S * 1000)),
            "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint,
            "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
            "OTEL_EXPORTER_PROMETHEUS_HOST": "127.0.0.1",
            "OTEL_EXPORTER_PROMETHEUS_PORT": str(first_port),
            **environ_of(kernel),
        }
        command = ["--standalone", f"--nproc-per-node={RANKS}", WORKER, gate]
        torchrun = Torchrun(warm_python, tmp_path / "output", command, environment)
        try:
            yield Job(memory, torchrun, gate, receiver, first_port)
        finally:
            torchrun.close()


def of_stall(spans: list[ReceivedSpan]) -> list[ReceivedSpan]:
    """The root spans of incidents."""
    return [span for span in spans if span.name == "stall: all_reduce (absent)"]


def test_late_rank_is_visible_while_it_hangs(job: Job) -> None:
    """Markers, incident and gauges name the late rank while it hangs; afterwards every span is there once."""
    began = time.monotonic()
    spans = job.receiver.wait_for(lambda found: bool(of_stall(found)), timeout_s=60, log=job.logs)
    job.wait_for_metric(r"^torchdist_stalled\{.*\} 1\.0$", timeout_s=15)
    assert time.monotonic() - began > THRESHOLD_S
    assert job.torchrun.poll() is None  # it still hangs

    root = of_stall(spans)[0]
    assert root.attributes["torchdist.stalled"] is True
    assert root.attributes["torchdist.verdict"] == "absent"
    assert root.attributes["torchdist.ranks"] == str(LATE)
    verdict_s = root.attributes["torchdist.stall.age"]
    due_s = THRESHOLD_S + 2.0 + lag_s(pid for pid in processes_of(job.base) if is_agent(pid))
    assert THRESHOLD_S <= verdict_s <= due_s
    late_bar = next(span for span in spans if span.trace_id == root.trace_id and span.name == f"rank {LATE}: absent")
    assert f"{WORKER}" in late_bar.attributes["code.stacktrace"]
    assert late_bar.attributes["code.function.name"] == "load_batch"
    assert late_bar.attributes["code.line.number"] in (LATE_LINE, LATE_LINE - 1)

    info = job.wait_for_metric(r"^torchdist_stall_info\{(.*)\} 1\.0$", timeout_s=15)[1]
    assert 'verdict="absent"' in info
    assert f'ranks="{LATE}"' in info
    assert f'trace_id="{root.trace_id:032x}"' in info
    ages = r'^torchdist_operation_oldest_age_seconds\{.*operation="all_reduce".*\} (\S*)$'
    oldest = [float(age) for age in re.findall(ages, job.scrape(), re.MULTILINE)]
    assert max(oldest) >= THRESHOLD_S  # of the ranks that wait; the late one has none in flight
    waiting = job.receiver.wait_for(lambda found: len(markers(found)) >= RANKS - 1)
    assert {span.attributes["torchdist.rank"] for span in markers(waiting)} >= {0, 1}

    job.gate.unlink()
    assert job.torchrun.wait(60) == 0, job.torchrun.log
    # The agent sends the last spans when the ranks are gone, and torchrun does not wait for it.
    check_traces(job.receiver.wait_for(lambda found: sum(span.name == "barrier" for span in found) >= RANKS))


def markers(spans: list[ReceivedSpan]) -> list[ReceivedSpan]:
    """The spans of the stalled operation that are still open."""
    return [span for span in spans if span.name == "all_reduce (in progress)"]


def check_traces(spans: list[ReceivedSpan]) -> None:
    """Each span once, no orphan, no span without length, all ranks in each step's trace, the end of the stall too."""
    twice = [key for key, count in Counter((span.trace_id, span.span_id) for span in spans).items() if count > 1]
    assert not twice
    place = {(span.trace_id, span.span_id): position for position, span in enumerate(spans)}
    for position, span in enumerate(spans):
        assert span.end_ns > span.start_ns
        if span.parent_id:
            assert place[span.trace_id, span.parent_id] < position, f"{span.name} came before its parent"
    anchors = [span for span in spans if span.name.startswith("step (rank")]
    for step in range(1, 12):
        of_step = [span for span in anchors if span.attributes["torchdist.step"] == step]
        assert {span.attributes["torchdist.rank"] for span in of_step} == set(range(RANKS))
        assert len({span.trace_id for span in of_step}) == 1
    operations = Counter(
        (span.name, span.attributes["torchdist.rank"])
        for span in spans
        if span.name in ("all_reduce", "barrier", "optimizer step")
    )
    # Twelve steps: DDP's one bucket and the script's own all_reduce.
    assert operations == {
        **{("optimizer step", rank): 12 for rank in range(RANKS)},
        **{("all_reduce", rank): 24 for rank in range(RANKS)},
        **{("barrier", rank): 1 for rank in range(RANKS)},
    }
    ids = {(span.trace_id, span.span_id) for span in spans}
    for marker in markers(spans):
        assert marker.error is not None
        assert any(link in ids for link in marker.links), "a marker links to the span that its operation got"
    assert any(span.attributes.get("torchdist.stall.resolved") is True for span in spans)
