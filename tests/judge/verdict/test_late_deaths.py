"""The first death if ends are seen late, or if the offset of a clock is uncertain."""

from __future__ import annotations

import dataclasses

import pytest

from otel_torchdist.judge.verdict.first_death import first_death
from otel_torchdist.judge.verdict.root_cause import RootFinder
from otel_torchdist.model.kinds import How, TapeState
from otel_torchdist.model.rank_state.lives import Death
from otel_torchdist.model.reports.verdict_kinds import VerdictKind
from otel_torchdist.model.snapshot import RankView, WorldSnapshot
from tests.judge.verdict.test_first_death import ABORT, KILL, RAISED, TERM, busy, first_of
from tests.support.worlds.detectors import Watching, stalled
from tests.support.worlds.fake_world import SECOND, START_NS, THRESHOLD_NS

EXITED = 3 << 8
"""The wait status of a process that exited with code 3."""


@pytest.mark.parametrize("status", [KILL, EXITED])
@pytest.mark.parametrize(
    ("others_s", "killed_s"), [(6.5, 9.0), (6.85, 6.8)], ids=["a driver cleans up", "the agent is late"]
)
def test_end_of_the_first_rank_is_seen_late(others_s: float, killed_s: float, status: int) -> None:
    """Its connections close immediately and peers raise, but its end is seen after theirs."""
    world, numbers = busy()
    for rank in (0, 1, 3):
        world.ranks[rank].end(numbers[rank], 6.0, How.FAILED, "RuntimeError")
        world.ranks[rank].is_seen_to_die(others_s, RAISED, TapeState.FAILED, "RuntimeError")
    world.ranks[2].is_seen_to_die(killed_s, status)
    world.ranks[2].heartbeat_age_s = killed_s - 5.9  # its threads end at once
    first = first_of(world, 10.0)
    assert (first.ranks, first.is_inferred) == ((2,), False)


def test_rank_that_was_thrown_out_by_a_death_that_is_not_seen_yet() -> None:
    """On a loaded machine, a killed process ends late: peers that raised because of it are not blamed."""
    world, numbers = busy(5.9)
    watching = Watching(world).until(6.0)
    world.ranks[3].heartbeat_age_s = 1.1  # its threads end at once
    world.ranks[0].end(numbers[0], 6.1, How.FAILED, "RuntimeError")
    world.ranks[0].die(6.2, TapeState.FAILED, "RuntimeError")
    watching.until(7.0)
    assert watching.verdicts == []
    world.ranks[0].is_seen_to_die(7.0, RAISED, TapeState.FAILED, "RuntimeError")
    world.ranks[3].is_seen_to_die(7.1, KILL)
    watching.until(9.0)
    ((_, given),) = watching.verdicts
    assert (given.verdict.kind, given.verdict.ranks) == (VerdictKind.DEAD, (3,))


def seen_late(alive_until_s: float, status: int = KILL) -> list[RankView]:
    """Let a rank be killed, and its busy agent see that after a launcher ended the rank of another node."""
    world, numbers = busy(5.9)
    world.ranks[0].end(numbers[0], 6.1, How.FAILED, "RuntimeError")
    world.ranks[0].is_seen_to_die(6.3, RAISED, TapeState.FAILED, "RuntimeError")
    world.ranks[3].is_seen_to_die(6.4, TERM)
    world.ranks[1].is_seen_to_die(6.7, status)
    views = [rank.view(7.0) for rank in (world.ranks[0], world.ranks[1], world.ranks[3])]
    views[1] = dataclasses.replace(views[1], heartbeat_ns=START_NS + round(alive_until_s * SECOND), is_remote=True)
    return views


@pytest.mark.parametrize("status", [KILL, ABORT, EXITED])
def test_launcher_that_is_faster_than_the_agent_that_sees_the_death(status: int) -> None:
    """A rank asked to end is not first if another rank may have been dead by then, although its end was seen later."""
    first = first_death(seen_late(6.05, status))
    assert first is not None and first.ranks == (1,)
    assert first.lead_ns is None  # the times do not show it


def test_rank_that_was_asked_to_end_while_the_other_lived() -> None:
    """If the killed rank showed a sign of life after that request, the asked rank is first."""
    first = first_death(seen_late(alive_until_s=6.6)[1:])
    assert first is not None and first.ranks == (3,)


@pytest.mark.parametrize("status", [ABORT, EXITED])
def test_rank_that_crashes_because_another_one_was_asked_to_end(status: int) -> None:
    """One rank is asked to end. Of the ranks that lose their connections to it, one raises and one crashes."""
    world, numbers = busy(5.9)
    world.ranks[3].is_seen_to_die(6.1, TERM)
    world.ranks[1].is_seen_to_die(6.15, status)
    world.ranks[1].heartbeat_age_s = 0.8
    world.ranks[0].end(numbers[0], 6.12, How.FAILED, "RuntimeError")
    world.ranks[0].is_seen_to_die(6.3, RAISED, TapeState.FAILED, "RuntimeError")
    first = first_death([world.ranks[rank].view(7.0) for rank in (0, 1, 3)])
    assert first is not None and first.ranks == (3,)


@pytest.mark.parametrize(("error_ms", "ranks"), [(1, (3,)), (150, (0, 3))])
def test_death_on_a_clock_that_is_not_known_well(error_ms: int, ranks: tuple[int, ...]) -> None:
    """Deaths on two nodes are ordered only as precisely as their clocks."""
    world, _ = busy()
    world.ranks[0].is_seen_to_die(6.1, KILL)
    world.ranks[3].is_seen_to_die(6.0, ABORT)
    for rank in (1, 2):
        world.ranks[rank].is_seen_to_die(6.3, TERM)
    views = [rank.view(7.0) for rank in world.ranks]
    views[3] = dataclasses.replace(views[3], is_remote=True, clock_error_ns=error_ms * 1_000_000)
    first = first_death(views)
    assert first is not None
    assert (first.ranks, first.is_inferred) == (ranks, len(ranks) > 1)


@pytest.mark.parametrize(("own", "named"), [("ValueError", (2,)), ("RuntimeError", None), ("SystemExit", None)])
def test_agent_that_comes_after_an_exception(own: str, named: tuple[int, ...] | None) -> None:
    """If all ranks failed before an agent reads their tapes, the rank with the program's exception was first.

    Without having been seen alive, a failed operation or a request to end proves nothing.
    """
    world, numbers = busy(5.9)
    if own == "RuntimeError":
        world.ranks[2].end(numbers[2], 6.0, How.FAILED, own)
    world.ranks[2].die(6.0, TapeState.FAILED, own)
    for rank in (0, 1, 3):
        world.ranks[rank].end(numbers[rank], 6.1, How.FAILED, "RuntimeError")
        world.ranks[rank].die(6.2, TapeState.FAILED, "RuntimeError")
    seen = world.snapshot(8.0)
    unseen = {rank: dataclasses.replace(view, seen_alive_ns=0, is_new=True) for rank, view in seen.ranks.items()}
    found = RootFinder(THRESHOLD_NS).find(dataclasses.replace(seen, ranks=unseen), [], None)
    assert (found.ranks if found is not None else None) == named


def test_agent_that_comes_after_a_kill_that_the_launcher_has_seen() -> None:
    """A launcher recorded the ends, but not their order: the killed rank was first, without a known lead."""
    world, numbers = busy(5.9)
    world.ranks[2].heartbeat_age_s = 1.0
    for rank in (0, 1, 3):
        world.ranks[rank].end(numbers[rank], 6.1, How.FAILED, "RuntimeError")
    for rank in world.ranks:
        rank.is_seen_to_die(7.0, KILL if rank.rank == 2 else TERM)
        assert rank.death is not None
        rank.death = dataclasses.replace(rank.death, resolution_ns=5 * SECOND)
    seen = world.snapshot(8.0)
    unseen = {rank: dataclasses.replace(view, seen_alive_ns=0, is_new=True) for rank, view in seen.ranks.items()}
    found = RootFinder(THRESHOLD_NS).find(dataclasses.replace(seen, ranks=unseen), [], None)
    assert found is not None
    assert (found.kind, found.ranks) == (VerdictKind.DEAD, (2,))
    assert found.first is not None
    assert found.first.lead_ns is None


class _Late(Watching):
    """An agent that starts after the ranks are gone."""

    def snapshot(self) -> WorldSnapshot:
        """See `Watching`."""
        seen = super().snapshot()
        ranks = {rank: dataclasses.replace(view, seen_alive_ns=0, is_new=True) for rank, view in seen.ranks.items()}
        return dataclasses.replace(seen, ranks=ranks)


@pytest.mark.parametrize(
    ("status", "kind", "due_s"),
    [(None, VerdictKind.DEAD, 11.5), (KILL, VerdictKind.DEAD, 9.1), (0, VerdictKind.ABSENT, 9.1)],
)
def test_verdict_waits_for_the_launcher(status: int | None, kind: VerdictKind, due_s: float) -> None:
    """A launcher may record an end after the agent has started: the verdict waits for that."""
    world, numbers = stalled(late=2, since_s=5.9)
    world.ranks[2].heartbeat_age_s = 0.1
    world.ranks[2].die(6.0)
    for rank, number in numbers.items():
        world.ranks[rank].end(number, 6.1, How.FAILED, "RuntimeError")
        world.ranks[rank].die(6.2, TapeState.FAILED, "RuntimeError")
    watching = _Late(world, began_s=7.75).until(8.4)
    assert watching.verdicts == []
    if status is not None:
        for rank in world.ranks:
            code = status if rank.rank == 2 else RAISED
            rank.death = Death(START_NS + round(8.4 * SECOND), resolution_ns=5 * SECOND, status=code)
        world.ranks[2].state = TapeState.FINISHED if status == 0 else TapeState.RUNNING
    watching.until(12.0)
    ((at_s, event),) = watching.verdicts
    assert (event.verdict.kind, event.verdict.ranks) == (kind, (2,))
    assert at_s <= due_s


@pytest.mark.parametrize(("is_asked", "ranks"), [(False, [(2,)]), (True, [])])
def test_crash_at_exit(is_asked: bool, ranks: list[tuple[int, ...]]) -> None:
    """A rank that crashes during the unloading of libraries is named, unless it handles SIGTERM.

    If it handles SIGTERM, it may have been asked to end like all others.
    """
    world, numbers = busy(5.0)
    for rank, number in numbers.items():
        world.ranks[rank].end(number, 5.1)
    watching = Watching(world).until(6.0)
    world.ranks[2].is_seen_to_die(6.1, ABORT, TapeState.FINISHED)
    world.ranks[2].death = dataclasses.replace(world.ranks[2].death, survives_sigterm=is_asked)  # type: ignore[type-var]
    for rank in (0, 1, 3):
        world.ranks[rank].is_seen_to_die(6.3, TERM)
    watching.until(9.0)
    assert [given.verdict.ranks for _, given in watching.verdicts if given.verdict.kind is VerdictKind.DEAD] == ranks
