"""All ranks of a job are killed at once, in the middle of a collective: the agent still reports it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from otel_torchdist import semconv
from tests.agent.life.test_life import check_once_without_orphans, count_on, recorded, up_on
from tests.agent.training import page_of
from tests.cli.gloo_jobs import GlooJobs
from tests.support.commands.running import processes_of
from tests.support.launch.warm_python import WarmPython
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
