"""The wall clock of a node is set while an agent reads: reported times follow it, and nothing else changes."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from tests.agent.life.test_life import check_once_without_orphans, recorded
from tests.support.commands.running import Running
from tests.support.ranks.job_ranks import Ranks
from tests.support.receivers.otlp_receiver import HTTP, OtlpReceiver, ReceivedSpan
from tests.support.waiting import until

STEPS_S = (900.0, -600.0, 0.0)
"""How far the clock is ahead after each step: minutes forwards and back."""
NEAR_NS = 60 * 10**9
STEPPING_CLOCK = """
import pathlib, time
machine_time, machine_time_ns, ahead = time.time, time.time_ns, pathlib.Path({path!r})
time.time = lambda: machine_time() + float(ahead.read_text())
time.time_ns = lambda: machine_time_ns() + int(float(ahead.read_text()) * 1e9)
"""


class Clock:
    """The wall clock of an agent and its ranks, settable without touching the machine's."""

    def __init__(self, folder: Path) -> None:
        """`folder` goes on the agent's PYTHONPATH."""
        self._ahead = folder / "ahead"
        self._ahead.write_text("0")
        (folder / "sitecustomize.py").write_text(STEPPING_CLOCK.format(path=str(self._ahead)))

    def set(self, ranks: Ranks, ahead_s: float) -> None:
        """Set it that far ahead of the machine's clock."""
        hidden = self._ahead.with_suffix(".new")
        hidden.write_text(str(ahead_s))
        hidden.rename(self._ahead)
        for rank in (0, 1):
            ranks.send(rank, f"clock {ahead_s}")


def of_sequence(spans: list[ReceivedSpan], sequence: int) -> list[ReceivedSpan]:
    """Spans of the operation, one of each rank."""
    found = [span for span in spans if span.name == "all_reduce" and span.attributes["torchdist.sequence"] == sequence]
    return found if len(found) == 2 else []


def markers(spans: list[ReceivedSpan]) -> int:
    """How often an operation was reported to be in progress."""
    return sum(span.name == "all_reduce (in progress)" for span in spans)


@pytest.fixture
def receiver() -> Iterator[OtlpReceiver]:
    """Receives the spans; gRPC would compare the clock of this test with the machine's."""
    with OtlpReceiver(HTTP) as receiver:
        yield receiver


@pytest.mark.thorough
def test_clock_is_set(
    begin: Callable[..., Ranks], agent: Callable[..., Running], receiver: OtlpReceiver, tmp_path: Path
) -> None:
    """Minutes forwards and back, also during a stall: no rank is called dead or frozen, no span is long or negative."""
    clock, ranks = Clock(tmp_path), begin(2)
    running = agent(PYTHONPATH=str(tmp_path), OTEL_PYTHON_TORCHDIST_STALL_TIMEOUT="1000")
    running.wait_for("found ranks? 0")
    sequence = itertools.count(1)
    ranks.meet(next(sequence))
    for ahead_s in STEPS_S:
        clock.set(ranks, ahead_s)
        at_ns = time.time_ns() + int(ahead_s * 1e9)

        def shows_it(at_ns: int = at_ns) -> bool:
            """A rank records the offset of its clocks once a second; until then its spans have the old time."""
            met = next(sequence)
            ranks.meet(met)
            for rank in (0, 1):
                ranks.send(rank, f"step {met}")
            spans = receiver.wait_for(lambda spans: bool(of_sequence(spans, met)))
            return all(abs(span.start_ns - at_ns) < NEAR_NS for span in of_sequence(spans, met))

        until(shows_it)
    stalled = next(sequence)
    ranks.send(0, f"enter {stalled}")
    for ahead_s in STEPS_S:
        clock.set(ranks, ahead_s)
        seen = markers(receiver.spans())
        receiver.wait_for(lambda spans, seen=seen: markers(spans) > seen)
    clock.set(ranks, STEPS_S[0])
    ranks.send(1, f"enter {stalled}")
    for rank in (0, 1):
        ranks.send(rank, "end")
    over = running.wait_for(r"^([\d:]+) stall over: all_reduce \(sequence \d+, .*\) completed after ([\d.]+) s")
    ranks.exit()
    assert running.end(40) == 0, running.story()

    said = datetime.strptime(over[1], "%H:%M:%S")
    behind_s = (datetime.now() + timedelta(seconds=STEPS_S[0]) - said).total_seconds() % 86_400
    assert behind_s < 60, "the agent's own clock was set too"
    assert float(over[2]) < 60
    spans = receiver.spans()
    assert all(0 < span.end_ns - span.start_ns < NEAR_NS for span in spans)
    assert recorded(spans, "all_reduce") == {0: stalled, 1: stalled}
    check_once_without_orphans(spans)
    verdicts = re.findall(r" stall: (.*)", running.out)
    assert verdicts
    assert all(verdict.startswith("rank 1 has not entered all_reduce") for verdict in verdicts)
    assert not re.search(r"dead|frozen|not run", running.out)
