"""A Collector that is down for long and comes back: effects on an agent and its memory."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from otel_torchdist.telemetry import semconv
from otel_torchdist.telemetry.export.queued_sink import MAX_QUEUED_SPANS
from tests.agent.life.test_life import check_once_without_orphans
from tests.agent.training import page_of
from tests.support.commands.running import Running
from tests.support.ranks.job_ranks import Ranks
from tests.support.receivers.otlp_receiver import OtlpReceiver, ReceivedSpan
from tests.support.waiting import until

STEPS = 10_000
"""Steps of each rank, with two spans each: more than the queue holds."""
MADE = 2 * 2 * STEPS
MAX_GROWTH_KB = 120_000
STALL = "stall: all_reduce (absent)"
EVIDENCE = 10
"""Spans of a stall that is a second old."""


def dropped_on(page: str) -> int:
    """Spans that `/metrics` counts as dropped."""
    found = re.search(r"^torchdist_spans_dropped_total ([\d.e+]+)$", page, re.MULTILINE)
    return int(float(found[1])) if found else -1


def private_kb(pid: int) -> int:
    """Private memory of a process."""
    found = re.search(r"RssAnon:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1])


def healthy(spans: list[ReceivedSpan]) -> list[ReceivedSpan]:
    """Spans of the steps that went well."""
    anchors = [span for span in spans if span.name.startswith("step ") and span.attributes[semconv.STEP] < STEPS]
    operations = [s for s in spans if s.name == "all_reduce" and s.attributes[semconv.SEQUENCE] <= STEPS]
    return anchors + operations


@pytest.mark.thorough
@pytest.mark.timeout(300)
def test_long_outage(
    begin: Callable[..., Ranks], agent: Callable[..., Running], receiver: OtlpReceiver, base: Path
) -> None:
    """The queue fills, the oldest steps are dropped and counted, memory stays bounded; a stall's evidence is kept."""
    receiver.pause()
    ranks = begin(2, capacity=1 << 16)
    running = agent(
        OTEL_PYTHON_TORCHDIST_STALL_TIMEOUT="1000",
        OTEL_PYTHON_TORCHDIST_SPAN_BUDGET="1000000000",
        OTEL_EXPORTER_OTLP_TIMEOUT="5",
    )
    until(lambda: dropped_on(page_of(base)) == 0)
    empty_kb = private_kb(running.process.pid)
    for rank in (0, 1):
        ranks.send(rank, f"many {STEPS}")
    until(lambda: dropped_on(page_of(base)) >= MADE - MAX_QUEUED_SPANS, 120.0)
    ranks.send(0, f"enter {STEPS + 1}")
    running.wait_for(r"stall: rank 1 has not entered all_reduce")
    assert private_kb(running.process.pid) - empty_kb < MAX_GROWTH_KB
    running.wait_for(r"spans cannot be exported \(OTEL_TRACES_EXPORTER=otlp, OTEL_EXPORTER_OTLP_ENDPOINT=http://")

    receiver.start()
    until(lambda: len(healthy(receiver.spans())) + dropped_on(page_of(base)) == MADE, 120.0)
    ranks.send(1, f"enter {STEPS + 1}")
    for rank in (0, 1):
        ranks.send(rank, "end")
    running.wait_for("stall over")
    ranks.exit()
    assert running.end(40) == 0, running.story()
    assert running.out.count("spans cannot be exported") == 1
    assert "spans are exported again" in running.out

    spans = receiver.spans()
    assert any(STALL in span.name for span in spans[: 2 + EVIDENCE]), "all but the step that was just being tried"
    for rank in (0, 1):
        steps = [
            span.attributes[semconv.SEQUENCE]
            for span in healthy(spans)
            if span.name == "all_reduce" and span.attributes[semconv.RANK] == rank
        ]
        assert steps[1:] == list(range(STEPS + 2 - len(steps), STEPS + 1)), "the newest, and perhaps that one"
    check_once_without_orphans(spans)
    assert {STALL, "all_reduce (in progress)", "rank 1: absent"} <= {span.name for span in spans}
