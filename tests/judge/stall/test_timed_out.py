"""Jobs that a timeout ends: the missing rank is named, while the job runs and afterwards, and no other rank."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_torchdist.judge.stall.reporting.attributes import resolution_of
from otel_torchdist.judge.verdict.past.post_mortem import PostMortem, examine
from otel_torchdist.judge.verdict.verdict import Outcome, Verdict
from otel_torchdist.judge.verdict.wording.ends import describe_timeouts
from otel_torchdist.judge.verdict.wording.sentence import sentence
from otel_torchdist.model.kinds import Blame, How, TapeState
from otel_torchdist.model.reports.verdict_kinds import VerdictKind
from tests.support.worlds.detectors import RULES, Watching
from tests.support.worlds.fake_world import RUN, SECOND, START_NS, FakeWorld, group_of

TERM, KILL = int(signal.SIGTERM), int(signal.SIGKILL)
EXITS_1 = 1 << 8
ENTERED_S = 2.0
NEGATIVE = re.compile(r"(?<![\w.])-\d[\d.]* (s|ms|min|h)\b")


@dataclass(frozen=True)
class Ending:
    """The end of a job whose ranks wait for one late rank.

    Attributes:
        size: Number of ranks.
        late: The rank that does not enter the operation.
        timeout_s: Timeout of the backend in seconds; the threshold is 10 s.
        apart_s: Seconds between the entries of the other ranks.
        loses: Whether all but the first of them lose the connection to the first, instead of timing out.
        dies_s: Seconds from a rank's exception to the end of its process.
        launcher_s: Seconds from that end to the launcher's SIGTERM to the others; None if it sends none.
        late_status: The wait status with which the late rank then ends.
        exits: Whether ranks exit with an error code, instead of letting the exception end them.
        is_seen: Whether an agent sees the exit statuses.
    """

    size: int = 3
    late: int = 0
    timeout_s: float = 20.0
    apart_s: float = 0.05
    loses: bool = False
    dies_s: float = 0.5
    launcher_s: float | None = 0.1
    late_status: int = TERM
    exits: bool = False
    is_seen: bool = True


def played(ending: Ending) -> tuple[FakeWorld, Watching]:
    """Play a job to its end. Return it with the reports of its agent."""
    group = group_of(*range(ending.size), description="default_pg")
    world = FakeWorld(ending.size)
    for rank in world.ranks:
        rank.heartbeat_age_s = 0.9  # they are a second apart
    world.meet(group, 1.0)
    watching = Watching(world)
    others = [rank for rank in range(ending.size) if rank != ending.late]
    numbers = {
        rank: world.ranks[rank].enter(group, ENTERED_S + nth * ending.apart_s, "barrier")
        for nth, rank in enumerate(others)
    }
    for rank, fails_s in _failures(ending, others).items():
        watching.until(fails_s)
        is_lost = ending.loses and rank != others[0]
        blame = Blame.CONNECTION if is_lost else Blame.TIMEOUT
        world.ranks[rank].end(numbers[rank], fails_s, How.FAILED, "RuntimeError", blame)
        world.ranks[rank].state = TapeState.FINISHED if ending.exits else TapeState.FAILED
        world.ranks[rank].failure = "" if ending.exits else "RuntimeError"
    ends_s = max(_failures(ending, others).values()) + ending.dies_s
    for nth, rank in enumerate(others):
        watching.until(ends_s + nth * 0.02)
        _end(ending, world, rank, ends_s + nth * 0.02, EXITS_1)
    if ending.launcher_s is not None:
        watching.until(ends_s + ending.launcher_s + 0.1)
        _end(ending, world, ending.late, ends_s + ending.launcher_s + 0.1, ending.late_status)
    watching.until(ends_s + 13.0)
    return world, watching


def _failures(ending: Ending, others: list[int]) -> dict[int, float]:
    gives_up_s = ENTERED_S + ending.timeout_s
    if not ending.loses:
        return {rank: gives_up_s + nth * ending.apart_s for nth, rank in enumerate(others)}
    return {rank: gives_up_s + (ending.dies_s + nth * 0.01 if nth else 0.0) for nth, rank in enumerate(others)}


def _end(ending: Ending, world: FakeWorld, rank: int, at_s: float, status: int) -> None:
    one = world.ranks[rank]
    if ending.is_seen:
        one.is_seen_to_die(at_s, status, one.state, one.failure)
    else:
        one.die(at_s, one.state, one.failure)


def afterwards(world: FakeWorld) -> PostMortem:
    """Return the verdict of `diagnose` on the tapes."""
    end_s = max(rank.gone_since_s or 0.0 for rank in world.ranks)
    views = [rank.view(end_s + 60.0) for rank in world.ranks]
    return examine(RUN, len(views), views, RULES, START_NS + round((end_s + 60.0) * SECOND))


def endings() -> st.SearchStrategy[Ending]:
    """Generate endings of small jobs."""
    sizes = st.integers(2, 4)
    return sizes.flatmap(
        lambda size: st.builds(
            Ending,
            size=st.just(size),
            late=st.integers(0, size - 1),
            timeout_s=st.sampled_from([2.5, 8.0, 20.0, 45.0]),
            apart_s=st.sampled_from([0.0, 0.05, 0.6]),
            loses=st.booleans(),
            dies_s=st.sampled_from([0.02, 0.5, 2.5]),
            launcher_s=st.sampled_from([0.05, 0.3, 2.0, None]),
            late_status=st.sampled_from([TERM, KILL, (128 + TERM) << 8, 0]),
            exits=st.booleans(),
            is_seen=st.booleans(),
        )
    ).filter(
        lambda ending: ending.is_seen or not ending.exits
    )  # without a status and an exception, nothing shows a failure


def check(ending: Ending, verdict: Verdict | None) -> None:
    """Check that only the late rank is named."""
    assert verdict is not None
    assert (verdict.kind, verdict.ranks) == (VerdictKind.ABSENT, (ending.late,))


@settings(max_examples=40, deadline=None)
@given(endings())
def test_late_rank_stays_the_cause(ending: Ending) -> None:
    """For every timeout and ending, a live agent reports one incident, which names the late rank."""
    _, watching = played(ending)
    assert watching.verdicts
    for at_s, event in watching.verdicts:
        check(ending, event.verdict)
        assert ending.apart_s or ending.loses or len(event.verdict.waiting) == ending.size - 1
        assert not NEGATIVE.search(sentence(event.verdict, event.verdict.age_ns(START_NS + round(at_s * SECOND)) / 1e9))
    ((_, end),) = watching.ends
    assert end.outcome is Outcome.FAILED
    shortest_s = ending.timeout_s - ending.apart_s * ending.size  # a report may come once the first rank has given up
    assert shortest_s * SECOND <= end.length_ns <= ending.timeout_s * SECOND
    assert not NEGATIVE.search(resolution_of(end))


@settings(max_examples=40, deadline=None)
@given(endings())
def test_late_rank_is_found_afterwards(ending: Ending) -> None:
    """`diagnose` names the late rank from the tapes, whether or not an agent saw the ends."""
    world, _ = played(ending)
    found = afterwards(world)
    check(ending, found.verdict)
    assert found.verdict is not None
    assert ending.apart_s > 0.5 or len(found.verdict.waiting) == ending.size - 1
    assert not NEGATIVE.search(sentence(found.verdict, found.age_ns / 1e9))


def test_incident_ends_with_what_happened() -> None:
    """The final line states what gave up, on which ranks and when, and the ends that the launcher caused."""
    _, watching = played(Ending())
    ((_, end),) = watching.ends
    assert resolution_of(end) == (
        "barrier (sequence 2, default_pg) failed after 20.0 s: "
        "gloo gave up in ranks 1-2 after 20 s; rank 0 was then killed by SIGTERM"
    )


def test_nothing_was_reported_before() -> None:
    """If the timeout is shorter than the threshold, the verdict is given when the backend gives up, and stays."""
    _, watching = played(Ending(timeout_s=8.0))
    ((at_s, event),) = watching.verdicts
    assert at_s < ENTERED_S + 9.0
    assert sentence(event.verdict, 8.0).startswith(
        "rank 0 has not entered barrier (sequence 2, default_pg) for 8.0 s; "
    )


def test_rank_that_lost_its_connection_is_said_to_have_followed() -> None:
    """The first rank that gives up closes its connections, which makes the next rank fail."""
    world, _ = played(Ending(loses=True))
    assert describe_timeouts([rank.view(60.0) for rank in world.ranks]) == (
        "gloo gave up in rank 1 after 20 s; rank 0 was then killed by SIGTERM; rank 2 then failed with RuntimeError"
    )


def test_death_before_the_timeout_is_the_cause() -> None:
    """If a launcher does not end the others, a rank killed long before they gave up is named as dead."""
    group = group_of(0, 1, 2, description="default_pg")
    world = FakeWorld(3)
    world.meet(group, 1.0)
    numbers = {rank: world.ranks[rank].enter(group, 2.0) for rank in (0, 1)}
    world.ranks[2].is_seen_to_die(3.0, KILL)
    for rank, number in numbers.items():
        world.ranks[rank].end(number, 22.0, How.FAILED, "RuntimeError", Blame.TIMEOUT)
        world.ranks[rank].is_seen_to_die(22.5, EXITS_1, TapeState.FAILED, "RuntimeError")
    verdict = afterwards(world).verdict
    assert verdict is not None
    assert (verdict.kind, verdict.ranks) == (VerdictKind.DEAD, (2,))


def test_exception_before_the_timeout_is_the_cause() -> None:
    """A rank that raised, but whose process lives on because of another thread, is the cause, not the timeout."""
    group = group_of(0, 1, 2, description="default_pg")
    world = FakeWorld(3)
    world.meet(group, 1.0)
    numbers = {rank: world.ranks[rank].enter(group, 2.0) for rank in (0, 1)}
    world.ranks[2].state, world.ranks[2].failure = TapeState.FAILED, "ValueError"
    for rank, number in numbers.items():
        world.ranks[rank].end(number, 22.0, How.FAILED, "RuntimeError", Blame.TIMEOUT)
        world.ranks[rank].is_seen_to_die(22.5, EXITS_1, TapeState.FAILED, "RuntimeError")
    world.ranks[2].is_seen_to_die(23.0, TERM, TapeState.FAILED, "ValueError")
    verdict = afterwards(world).verdict
    assert verdict is not None
    assert (verdict.kind, verdict.ranks) == (VerdictKind.DEAD, (2,))


def test_program_gave_up_its_own_wait() -> None:
    """`work.wait(timeout)` raises while the operation continues: the missing rank is named."""
    group = group_of(0, 1, 2, description="default_pg")
    world = FakeWorld(3)
    world.meet(group, 1.0)
    for rank in (0, 1):
        number = world.ranks[rank].enter(group, 2.0, blocking=False)
        world.ranks[rank].wait_for(number, 2.0)
        world.ranks[rank].gives_up_waiting(number, 6.0)
        world.ranks[rank].is_seen_to_die(6.5, EXITS_1, TapeState.FAILED, "RuntimeError")
    world.ranks[2].is_seen_to_die(7.0, TERM)
    found = afterwards(world)
    assert found.verdict is not None
    assert (found.verdict.kind, found.verdict.ranks) == (VerdictKind.ABSENT, (2,))
    assert describe_timeouts([rank.view(60.0) for rank in world.ranks]) == (
        "its program gave up in ranks 0-1 after 4 s; rank 2 was then killed by SIGTERM"
    )


def test_program_that_goes_on_after_a_timeout() -> None:
    """Ranks that catch the exception and continue have not ended: the incident is over, and no rank is dead."""
    group = group_of(0, 1, 2, description="default_pg")
    world = FakeWorld(3)
    world.meet(group, 1.0)
    watching = Watching(world)
    numbers = {rank: world.ranks[rank].enter(group, 2.0) for rank in (0, 1)}
    watching.until(22.0)
    for rank, number in numbers.items():
        world.ranks[rank].end(number, 22.0, How.FAILED, "RuntimeError", Blame.TIMEOUT)
    watching.until(30.0)
    assert [(event.verdict.kind, event.verdict.ranks) for _, event in watching.verdicts] == [(VerdictKind.ABSENT, (2,))]
    ((at_s, _),) = watching.ends
    assert at_s < 23.0


@pytest.mark.parametrize("later_s", [1.0, 100.0], ids=["it wraps the exception", "it goes on and fails later"])
def test_exception_of_another_type(later_s: float) -> None:
    """A program may raise its own exception for a timeout. Long after a handled timeout, an exception is unrelated."""
    group = group_of(0, 1, 2, description="default_pg")
    world = FakeWorld(3)
    world.meet(group, 1.0)
    number = world.ranks[0].enter(group, 2.0)
    world.ranks[0].end(number, 22.0, How.FAILED, "RuntimeError", Blame.TIMEOUT)
    world.ranks[0].is_seen_to_die(22.0 + later_s, EXITS_1, TapeState.FAILED, "TrainingError")
    for rank in (1, 2):
        world.ranks[rank].is_seen_to_die(22.2 + later_s, TERM)
    verdict = afterwards(world).verdict
    assert verdict is not None
    expected = (VerdictKind.ABSENT, (1, 2)) if later_s < 10 else (VerdictKind.DEAD, (0,))
    assert (verdict.kind, verdict.ranks) == expected


def test_wait_that_was_given_up_before() -> None:
    """A program polls with short waits, and later fails for another reason, which is the cause."""
    group = group_of(0, 1, 2, description="default_pg")
    world = FakeWorld(3)
    world.meet(group, 1.0)
    number = world.ranks[0].enter(group, 2.0, blocking=False)
    world.ranks[0].wait_for(number, 2.0)
    world.ranks[0].gives_up_waiting(number, 3.0)
    world.ranks[0].is_seen_to_die(3.5, EXITS_1, TapeState.FAILED, "ValueError")
    for rank in (1, 2):
        world.ranks[rank].is_seen_to_die(3.8, TERM)
    verdict = afterwards(world).verdict
    assert verdict is not None
    assert (verdict.kind, verdict.ranks) == (VerdictKind.DEAD, (0,))
