"""Verdicts that stay: a job that hangs and is then ended keeps its verdict, however its ranks end."""

from __future__ import annotations

import dataclasses
import signal
from collections.abc import Callable

import pytest

from otel_torchdist.judge.stall.events import VerdictGiven
from otel_torchdist.judge.stall.reporting.attributes import resolution
from otel_torchdist.judge.verdict.root_cause import RootFinder
from otel_torchdist.judge.verdict.verdict import Outcome
from otel_torchdist.judge.verdict.wording.sentence import describe_verdict
from otel_torchdist.model.kinds import Blame, How, RecordKind, TapeState
from otel_torchdist.model.reports.verdict_kinds import VerdictKind
from otel_torchdist.model.snapshot import RankView, WorldSnapshot
from tests.support.worlds.detectors import Watching, stalled
from tests.support.worlds.fake_world import THRESHOLD_NS, FakeRank, FakeWorld, group_of

KILL, TERM = int(signal.SIGKILL), int(signal.SIGTERM)
DYING = Callable[[FakeRank, float], None]


def _unseen(rank: FakeRank, at_s: float) -> None:
    rank.die(at_s)


def _by_signal(rank: FakeRank, at_s: float) -> None:
    rank.is_seen_to_die(at_s, TERM)


def hung() -> tuple[FakeWorld, dict[int, int], Watching]:
    """Build a job whose rank 2 was reported as late after 12 s."""
    world, numbers = stalled()
    watching = Watching(world).until(17.0)
    ((_, given),) = watching.verdicts
    assert (given.verdict.kind, given.verdict.ranks) == (VerdictKind.ABSENT, (2,))
    return world, numbers, watching


def check_that_it_stands(watching: Watching) -> None:
    """Check that no other rank is named, and that the job was ended while it hung."""
    watching.until(60.0)
    assert {given.verdict.ranks for _, given in watching.verdicts} == {(2,)}
    assert {given.verdict.kind for _, given in watching.verdicts} == {VerdictKind.ABSENT}
    ((_, end),) = watching.ends
    assert end.outcome is Outcome.RANKS_ENDED
    said = resolution(end.verdict, end.outcome, end.length_ns)
    assert said.startswith("the job was ended while it hung, after ")


@pytest.mark.parametrize("dying", [_unseen, _by_signal])
@pytest.mark.parametrize("survivor", [True, False], ids=["the named rank lives", "all die"])
def test_waiting_ranks_are_ended(dying: DYING, survivor: bool) -> None:
    """Waiting ranks are ended, perhaps all between two polls, and a stopped rank outlives SIGTERM: it stays named."""
    world, _, watching = hung()
    for rank in world.ranks:
        if rank.rank != 2 or not survivor:
            dying(rank, 17.1 + rank.rank / 1000)
    check_that_it_stands(watching)


def test_waiting_ranks_die_one_after_the_other() -> None:
    """The first rank is gone some polls before the others, one of which then raises in the operation."""
    world, numbers, watching = hung()
    world.ranks[0].is_seen_to_die(17.1, TERM)
    watching.until(18.0)
    world.ranks[1].end(numbers[1], 18.1, How.FAILED, "RuntimeError")
    watching.until(18.5)
    world.ranks[1].is_seen_to_die(18.6, 1 << 8, TapeState.FAILED, "RuntimeError")
    watching.until(19.0)
    world.ranks[3].is_seen_to_die(19.1, TERM)
    world.ranks[2].is_seen_to_die(47.0, KILL)
    check_that_it_stands(watching)


def test_named_rank_is_killed() -> None:
    """If the named rank is killed, the verdict changes: the others continue to wait, for a dead rank."""
    world, _, watching = hung()
    world.ranks[2].is_seen_to_die(17.1, KILL)
    watching.until(24.0)
    kinds = [(given.verdict.kind, given.verdict.ranks) for _, given in watching.verdicts]
    assert kinds == [(VerdictKind.ABSENT, (2,)), (VerdictKind.DEAD, (2,))]


def test_ended_while_stacks_are_awaited() -> None:
    """A waiting rank dies while the verdict is pending: it is given unchanged."""
    world, _ = stalled()
    watching = Watching(world, answers_after_s=None).until(15.5)
    assert watching.verdicts == []
    world.ranks[0].is_seen_to_die(15.6, TERM)
    watching.until(17.0)
    for rank in (1, 3):
        world.ranks[rank].is_seen_to_die(17.1, TERM)
    check_that_it_stands(watching)


# --- Ranks that exit by themselves while others need them, and the exceptions that the others get from that -----------


CLEAN, FINDS_ERROR, HANDLES_TERM, OTHER_ERROR = (code << 8 for code in (0, 3, 128 + signal.SIGTERM, 1))
"""Wait statuses: exited with 0, with 3, as after SIGTERM, and with 1."""
OTHERS = (0, 1, 3)


def departed(status: int | None, state: TapeState = TapeState.FINISHED) -> tuple[FakeWorld, dict[int, int]]:
    """Let rank 2 exit while the others are in an all_reduce. `None` as status: the end is not seen yet."""
    world, numbers = stalled(late=2, since_s=5.9)
    world.ranks[2].heartbeat_age_s = 0.1
    if status is None:
        world.ranks[2].die(6.0, state)
    else:
        world.ranks[2].is_seen_to_die(6.0, status, state)
    return world, numbers


def fail(world: FakeWorld, numbers: dict[int, int], status: int, state: TapeState, failure: str) -> None:
    """Let the others raise because of that, and end 60 ms later."""
    for rank in OTHERS:
        world.ranks[rank].end(numbers[rank], 6.01, How.FAILED, "RuntimeError")
        world.ranks[rank].is_seen_to_die(6.06 + rank / 1000, status, state, failure)


def reported(world: FakeWorld, watching: Watching | None = None) -> list[VerdictGiven]:
    """Return the reports of an agent that has watched the job from its start."""
    watching = watching or Watching(world)
    watching.until(12.0)
    return [given for _, given in watching.verdicts]


def said(given: VerdictGiven) -> str:
    """Return the sentence of the report."""
    return describe_verdict(given.verdict, 0.1)


def seen_before(world: FakeWorld) -> None:
    """Record that all ranks were seen alive."""
    for rank in world.ranks:
        rank.seen_alive_s = 5.8


@pytest.mark.parametrize(
    ("status", "state", "how"),
    [
        (CLEAN, TapeState.FINISHED, "has exited with code 0"),
        (CLEAN, TapeState.RUNNING, "has exited with code 0"),
        (HANDLES_TERM, TapeState.FINISHED, "exited with code 143"),
        (None, TapeState.FINISHED, "has finished"),
    ],
    ids=["end of the script", "os._exit(0)", "handled signal", "process still ending"],
)
def test_departed_rank_is_named(status: int | None, state: TapeState, how: str) -> None:
    """The departed rank is named once, with its exit, not ranks whose exceptions are consequences."""
    world, numbers = departed(status, state)
    seen_before(world)
    fail(world, numbers, OTHER_ERROR, TapeState.FAILED, "RuntimeError")
    (given,) = reported(world)
    assert (given.verdict.kind, given.verdict.ranks) == (VerdictKind.ABSENT, (2,))
    assert said(given).startswith(
        f"rank 2 {how} before all_reduce (sequence 2, default_pg), which failed on ranks 0-1,3 with RuntimeError; "
    )


def test_others_handle_their_exceptions() -> None:
    """The same if the others handle their exceptions, and exit with an error code."""
    world, numbers = departed(CLEAN)
    seen_before(world)
    fail(world, numbers, OTHER_ERROR, TapeState.FINISHED, "")
    (given,) = reported(world)
    assert (given.verdict.kind, given.verdict.ranks) == (VerdictKind.ABSENT, (2,))


@pytest.mark.parametrize("others", [TapeState.FAILED, TapeState.FINISHED])
def test_exit_with_an_error_code_is_a_death(others: TapeState) -> None:
    """`sys.exit(3)` is recorded as the end of the script, but ends the job like `os._exit(3)`."""
    world, numbers = departed(FINDS_ERROR)
    seen_before(world)
    fail(world, numbers, OTHER_ERROR, others, "RuntimeError" if others is TapeState.FAILED else "")
    (given,) = reported(world)
    assert (given.verdict.kind, given.verdict.ranks) == (VerdictKind.DEAD, (2,))
    assert said(given).startswith("rank 2 exited with code 3 0.060 s before the others ended, and all_reduce ")


def test_launcher_ends_the_others() -> None:
    """The launcher ends the others because of the error code. Two of them had raised, but neither was first."""
    world, numbers = departed(FINDS_ERROR)
    seen_before(world)
    for rank in (1, 3):
        world.ranks[rank].end(numbers[rank], 6.01, How.FAILED, "RuntimeError")
    for rank in OTHERS:
        world.ranks[rank].is_seen_to_die(6.1 + rank / 1000, signal.SIGTERM)
    (given,) = reported(world)
    assert (given.verdict.kind, given.verdict.ranks) == (VerdictKind.DEAD, (2,))


@pytest.mark.parametrize("status", [CLEAN, HANDLES_TERM, OTHER_ERROR])
def test_canceled_job_whose_ranks_handle_the_signal(status: int) -> None:
    """All ranks exit alike, some after an exception: with the codes of a handled signal, no rank is named."""
    world, numbers = departed(status)
    seen_before(world)
    fail(world, numbers, status, TapeState.FINISHED, "")
    named = [given.verdict.ranks for given in reported(world)]
    assert named == ([(2,)] if status == OTHER_ERROR else [])  # that code may also be an error


def test_broken_connection() -> None:
    """All ranks have entered, and one loses a connection first: it is named as the first to end, with its exception."""
    world, numbers = stalled(late=-1, since_s=5.9)
    seen_before(world)
    for rank, failed_s in ((1, 6.0), (0, 6.2), (2, 6.21), (3, 6.22)):
        world.ranks[rank].end(numbers[rank], failed_s, How.FAILED, "RuntimeError")
        world.ranks[rank].is_seen_to_die(failed_s + 0.1, OTHER_ERROR, TapeState.FAILED, "RuntimeError")
    (given,) = reported(world)
    assert (given.verdict.kind, given.verdict.ranks) == (VerdictKind.DEAD, (1,))
    assert said(given).startswith("rank 1 ended with RuntimeError 0.20 s before the others ended, and all_reduce ")


def test_all_ranks_end_with_an_error_code() -> None:
    """All ranks exit with an error code outside of operations, as the result of the program: none is named."""
    world, numbers = stalled(late=-1, since_s=5.0)
    for rank, number in numbers.items():
        world.ranks[rank].end(number, 5.1)
    seen_before(world)
    for rank in range(4):
        world.ranks[rank].is_seen_to_die(6.0 + rank, OTHER_ERROR, TapeState.FINISHED)
    assert reported(world) == []


@pytest.mark.parametrize("change", ["all asked to end", "a member is not seen", "not watched before"])
def test_no_rank_is_named(change: str) -> None:
    """No rank is named if it was asked to end, if an unseen rank may be the cause, or if no agent watched."""
    world, numbers = departed(CLEAN)
    if change != "not watched before":
        seen_before(world)
    fail(world, numbers, OTHER_ERROR, TapeState.FAILED, "RuntimeError")
    watching = _Changed(world, change)
    assert reported(world, watching) == []


class _Changed(Watching):
    """A detector that changes the views of ranks."""

    def __init__(self, world: FakeWorld, change: str) -> None:
        super().__init__(world)
        self._change = change

    def snapshot(self) -> WorldSnapshot:
        """See `Watching`."""
        snapshot = super().snapshot()
        ranks: dict[int, RankView] = dict(snapshot.ranks)
        asked = {"all asked to end": range(4), "asked to end": [2]}.get(self._change, [])
        ranks |= {rank: dataclasses.replace(ranks[rank], asked_signal=signal.SIGTERM) for rank in asked}
        if self._change == "a member is not seen":
            del ranks[0]
        return dataclasses.replace(snapshot, ranks=ranks)


@pytest.mark.parametrize("fails", [True, False], ids=["the others fail", "the others wait"])
def test_rank_that_alone_was_asked_to_end(fails: bool) -> None:
    """A rank that alone was asked to end, and exits with code 0 while others need it, is named with the signal."""
    world, numbers = departed(CLEAN)
    seen_before(world)
    if fails:
        fail(world, numbers, OTHER_ERROR, TapeState.FAILED, "RuntimeError")
    watching = _Changed(world, "asked to end").until(30.0)
    (_, given), *_ = watching.verdicts
    assert (given.verdict.kind, given.verdict.ranks) == (VerdictKind.ABSENT, (2,))
    assert said(given).startswith("rank 2 has exited with code 0 after SIGTERM before all_reduce (sequence 2, default")


def test_all_were_asked_and_one_is_faster() -> None:
    """In a job that is canceled slowly, no rank is blamed, even if others wait for one that has left."""
    world, _ = departed(CLEAN)
    seen_before(world)
    watching = _Changed(world, "all asked to end").until(60.0)
    assert watching.verdicts == []


def test_departed_rank_of_a_launcher_that_knows() -> None:
    """If all ranks were gone before the agent started, the exit code recorded by the launcher is enough evidence."""
    world, numbers = departed(CLEAN, TapeState.RUNNING)
    fail(world, numbers, OTHER_ERROR, TapeState.FAILED, "RuntimeError")
    seen = world.snapshot(8.0)
    unseen = {rank: dataclasses.replace(view, seen_alive_ns=0, is_new=True) for rank, view in seen.ranks.items()}
    found = RootFinder(THRESHOLD_NS).find(dataclasses.replace(seen, ranks=unseen), [], None)
    assert found is not None
    assert (found.kind, found.ranks) == (VerdictKind.ABSENT, (2,))


@pytest.mark.parametrize("is_over", [True, False])
def test_host_of_the_store_that_has_left(is_over: bool) -> None:
    """Rank 0 exits while others continue: their next group needs its store, although it is no member of the group.

    If rank 0 still runs, it is not the cause of their lost connection.
    """
    world, pair = FakeWorld(3), group_of(1, 2, description="evaluation")
    if is_over:
        world.ranks[0].die(5.0, TapeState.FINISHED)
    watching = Watching(world).until(6.0)
    for rank in (1, 2):
        number = world.ranks[rank].enter(pair, 6.1, "new_group", kind=RecordKind.RENDEZVOUS)
        world.ranks[rank].end(number, 6.2, How.FAILED, "DistNetworkError", Blame.CONNECTION)
        world.ranks[rank].is_seen_to_die(6.3, OTHER_ERROR, TapeState.FAILED, "DistNetworkError")
    given = reported(world, watching)
    assert [(one.verdict.kind, one.verdict.ranks) for one in given] == [(VerdictKind.ABSENT, (0,))] * is_over
    if is_over:
        assert said(given[0]).startswith(
            "rank 0 has finished before new_group (evaluation), which failed on ranks 1-2 with DistNetworkError"
        )
