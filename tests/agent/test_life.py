"""The agent that ranks start: it is there in time, reads everything, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from tests.agent.training import RANKS, Training, until
from tests.support.otlp_receiver import ReceivedSpan

MARGIN_S = 3.0
"""What a busy machine may add to the two seconds that are promised."""


def check_once_without_orphans(spans: list[ReceivedSpan]) -> None:
    """Each span id once, and every parent before its children."""
    twice = [key for key, count in Counter((span.trace_id, span.span_id) for span in spans).items() if count > 1]
    assert not twice
    seen: set[tuple[int, int]] = set()
    for span in spans:
        assert not span.parent_id or (span.trace_id, span.parent_id) in seen, span.name
        seen.add((span.trace_id, span.span_id))


def recorded(spans: list[ReceivedSpan], name: str) -> Counter[int]:
    """How many spans of an operation there are, by rank."""
    return Counter(span.attributes["torchdist.rank"] for span in spans if span.name == name)


def count_on(page: str, operation: str) -> list[int]:
    """How many operations `/metrics` counts, by rank."""
    lines = [line for line in page.splitlines() if line.startswith("torchdist_operations_total{")]
    return sorted(int(float(line.rpartition(" ")[2])) for line in lines if f'operation="{operation}"' in line)


def test_from_first_group_to_last_scrape(training: Training) -> None:
    """It answers soon after the group exists, on one port for both ranks, exports all spans, and goes when scraped."""
    joined = training.joined_at()
    until(training.scrape)
    assert time.monotonic() - joined < 2.0 + MARGIN_S
    [agent] = training.agents()
    parent, session = Path(f"/proc/{agent}/stat").read_text().rpartition(") ")[2].split()[1:4:2]
    assert int(parent) not in [*training.ranks(), training.process.pid]
    assert int(session) == os.getsid(agent) != os.getsid(training.process.pid)
    assert "libtorch" not in Path(f"/proc/{agent}/maps").read_text()
    until(lambda: len(count_on(training.scrape(), "all_reduce")) == RANKS)

    steps = training.end()
    until(lambda: count_on(training.scrape(), "all_reduce") == [steps] * RANKS)
    until(lambda: not training.agents())
    assert training.target() == ""
    spans = training.receiver.spans()
    check_once_without_orphans(spans)
    assert recorded(spans, "all_reduce") == recorded(spans, "broadcast") == dict.fromkeys(range(RANKS), steps)
    assert recorded(spans, "barrier") == dict.fromkeys(range(RANKS), 1)
    assert "Traceback" not in training.log


def test_all_ranks_killed(train: Callable[..., Training]) -> None:
    """SIGKILL to all ranks in mid-collective: what they had done is exported, and what was seen of the stall."""
    training = train(environ={"OTEL_PYTHON_TORCHDIST_AGENT_LINGER": "3000"})
    training.joined_at()
    training.receiver.wait_for(lambda spans: recorded(spans, "all_reduce")[0] > 5)
    training.stall()
    training.receiver.wait_for(lambda spans: any(span.name == "broadcast (in progress)" for span in spans))
    training.kill()
    until(lambda: training.scrape().count("torchdist_up{") == RANKS and "} 1.0" not in up_on(training.scrape()))
    counts = count_on(training.scrape(), "all_reduce")
    until(lambda: not training.agents())
    spans = training.receiver.spans()
    check_once_without_orphans(spans)
    assert sorted(recorded(spans, "all_reduce").values()) == counts
    [cut] = [span for span in spans if span.name == "broadcast" and span.attributes.get("torchdist.stalled")]
    assert cut.error is not None
    assert "the process was gone" in cut.error
    assert cut.attributes["torchdist.rank"] == 1


def up_on(page: str) -> str:
    """The lines of `/metrics` that say which rank is there."""
    return "\n".join(line for line in page.splitlines() if line.startswith("torchdist_up{"))


def test_agent_that_dies_is_started_again(training: Training) -> None:
    """A rank starts it again; it keeps its port, counts on, and sends no span a second time."""
    training.joined_at()
    until(training.scrape)
    target = training.target()
    for _ in range(2):
        seen = count_on(until(training.scrape), "all_reduce")
        [agent] = training.agents()
        os.kill(agent, signal.SIGKILL)
        until(lambda agent=agent: training.agents() not in ([], [agent]))
        assert count_on(until(training.scrape), "all_reduce") >= seen
        assert training.target() == target
    steps = training.end()
    until(lambda: count_on(training.scrape(), "all_reduce") == [steps] * RANKS)
    until(lambda: not training.agents())
    check_once_without_orphans(training.receiver.spans())
