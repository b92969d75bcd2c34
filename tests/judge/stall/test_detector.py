"""The detector: the times of its reports, what it reports only once, and the end of incidents."""

from collections.abc import Sequence

import pytest

from otel_torchdist.judge.stall.events import IncidentResolved, MarkerDue, Occasion, StacksWanted
from otel_torchdist.judge.stall.watch import CHECK_S, HURRIED_CHECK_S
from otel_torchdist.judge.verdict.verdict import Outcome
from otel_torchdist.model.kinds import Flag
from otel_torchdist.model.reports.verdict_kinds import VerdictKind
from tests.support.worlds.detectors import EVERYBODY, LOAD_BATCH, Watching, stalled
from tests.support.worlds.fake_world import SECOND, FakeWorld, group_of


def ages_s(markers: Sequence[MarkerDue]) -> list[float]:
    """Return the ages at which markers were due, in seconds."""
    return [(marker.taken_ns - marker.wait.since_ns) / 1e9 for marker in markers]


def test_verdict_comes_with_the_stacks() -> None:
    """The late rank is asked for its stack early, all ranks at the threshold. The verdict is given with the stacks."""
    watching = Watching(stalled()[0]).until(14.99)
    assert watching.reported == []
    watching.until(17.0)
    wishes = [(at_s, event) for at_s, event in watching.events if isinstance(event, StacksWanted)]
    *early, (asked_s, wanted) = wishes
    assert [round(at_s - 1.0) for at_s, _ in early] == [8]
    assert {event.nonces for _, event in early} == {frozenset({0x1002})}
    assert 15.0 <= asked_s <= 15.0 + CHECK_S
    assert wanted.nonces == {0x1000, 0x1001, 0x1002, 0x1003}
    ((given_s, given),) = watching.verdicts
    assert given_s <= asked_s + 0.6 + 2 * HURRIED_CHECK_S
    assert (given.occasion, given.verdict.kind, given.verdict.ranks) == (Occasion.OPENED, VerdictKind.ABSENT, (2,))
    assert given.verdict.places[2].frame == LOAD_BATCH
    assert (given.epoch, given.epoch_before) == (1, None)


@pytest.mark.parametrize("offset_s", [0.0, 0.07, 0.249])
def test_verdict_does_not_wait_long_for_stacks(offset_s: float) -> None:
    """Ranks that never answer delay the verdict by at most 1.5 s and one short interval between polls."""
    watching = Watching(stalled()[0], answers_after_s=None, began_s=offset_s).until(20.0)
    ((given_s, given),) = watching.verdicts
    assert 15.0 + 1.4 <= given_s <= 15.0 + 1.5 + HURRIED_CHECK_S
    assert given.verdict.places[2].stacktrace == ""


def test_markers_at_doubling_ages() -> None:
    """Each waiting operation gets markers at 1, 2, 4 and 8 times the threshold, at the next poll."""
    watching = Watching(stalled()[0]).until(100.0)
    for rank in (0, 1, 3):
        markers = watching.markers(rank)
        assert [marker.nth for marker in markers] == [1, 2, 3, 4]
        for age_s, due_s in zip(ages_s(markers), (10, 20, 40, 80), strict=True):
            assert due_s <= age_s <= due_s + CHECK_S
    assert watching.markers(2) == []


def test_verdict_is_repeated_at_doubling_ages() -> None:
    """During an incident, the verdict is repeated each time its age has doubled, as a new epoch."""
    watching = Watching(stalled()[0]).until(60.0)
    occasions = [(event.occasion, event.epoch, event.epoch_before) for _, event in watching.verdicts]
    assert occasions == [(Occasion.OPENED, 1, None), (Occasion.GROWN, 2, 1), (Occasion.GROWN, 3, 2)]
    assert [round(at_s - 5.0) for at_s, _ in watching.verdicts] == [11, 21, 41]


def test_incident_is_resolved_with_its_length() -> None:
    """The late rank enters and the operation ends: the incident is resolved once, with its length, and stays silent."""
    world, numbers = stalled()
    watching = Watching(world).until(24.0)
    numbers[2] = world.ranks[2].enter(EVERYBODY, 24.0)
    for rank, number in numbers.items():
        world.ranks[rank].end(number, 24.1)
    watching.until(40.0)
    ((ended_s, end),) = watching.ends
    assert ended_s <= 24.1 + CHECK_S
    assert (end.outcome, end.length_ns) == (Outcome.COMPLETED, round((ended_s - 5.0) * SECOND))
    assert (end.epoch, end.epoch_before) == (2, 1)
    assert watching.reported[-1][0] == ended_s


def test_late_rank_that_has_come_changes_no_verdict() -> None:
    """While an operation that all ranks have entered is in progress, the detector reports nothing."""
    world, _ = stalled()
    watching = Watching(world).until(17.0)
    world.ranks[2].enter(EVERYBODY, 17.0)
    watching.until(24.0)
    assert len(watching.verdicts) == 1
    watching.until(35.0)
    changed = watching.verdicts[-1][1]
    assert (changed.occasion, changed.verdict.kind) == (Occasion.CHANGED, VerdictKind.TRANSPORT)


def test_rank_that_comes_before_the_verdict() -> None:
    """The late rank enters while the verdict waits for stacks: there is no incident."""
    world, numbers = stalled()
    watching = Watching(world, answers_after_s=None).until(15.5)
    world.ranks[2].enter(EVERYBODY, 15.6)
    watching.until(16.0)
    for rank, number in numbers.items():
        world.ranks[rank].end(number, 16.0)
    watching.until(20.0)
    assert watching.verdicts == []
    assert watching.ends == []
    assert watching.detector.next_check_s == CHECK_S


def test_urgent_from_half_the_threshold_on() -> None:
    """A verdict may be due soon once operations have been open for half the threshold, and until they have ended."""
    world, numbers = stalled()
    watching = Watching(world).until(9.8)
    assert not watching.detector.is_urgent
    for now_s in (10.5, 15.5, 17.0):
        watching.until(now_s)
        assert watching.detector.is_urgent
    world.ranks[2].enter(EVERYBODY, 17.0)
    for rank, number in numbers.items():
        world.ranks[rank].end(number, 17.1)
    watching.until(18.0)
    assert not watching.detector.is_urgent


def test_changed_verdict_is_a_new_epoch() -> None:
    """Two ranks are missing and one enters: the changed verdict is given once, after it has held for a second."""
    world = FakeWorld(4)
    for rank in (0, 1):
        world.ranks[rank].enter(EVERYBODY, 5.0)
    watching = Watching(world).until(17.0)
    world.ranks[3].enter(EVERYBODY, 17.0)
    watching.until(24.0)
    (_, opened), (changed_s, changed) = watching.verdicts
    assert (opened.verdict.ranks, changed.verdict.ranks) == ((2, 3), (2,))
    assert (changed.occasion, changed.epoch, changed.epoch_before) == (Occasion.CHANGED, 2, 1)
    assert changed.incident == opened.incident
    assert 18.0 <= changed_s <= 17.0 + CHECK_S + 1.0 + HURRIED_CHECK_S


def test_verdict_that_changes_all_the_time_is_bounded() -> None:
    """If the blame alternates between two ranks, the pauses between reports grow."""
    world, _ = stalled()
    watching = Watching(world).until(17.0)
    for turn in range(60):
        number = world.ranks[2].enter(group_of(2, 3, nth=turn), 17.0 + 4 * turn)
        watching.until(19.0 + 4 * turn)
        world.ranks[2].end(number, 19.0 + 4 * turn)
        watching.until(21.0 + 4 * turn)
    assert len([event for _, event in watching.verdicts if event.occasion is Occasion.CHANGED]) < 16


def test_one_incident_for_all_stalled_groups() -> None:
    """A late rank stalls three groups of a mesh: one incident, whose root is the operation that waited longest."""
    world = FakeWorld(4)
    rows, columns = group_of(0, 1, description="tp"), group_of(1, 3, description="dp")
    world.ranks[0].enter(rows, 6.0)
    world.ranks[3].enter(columns, 5.0)
    world.ranks[2].enter(group_of(2, 3), 7.0)
    watching = Watching(world).until(30.0)
    assert len({event.incident for _, event in watching.verdicts}) == 1
    verdict = watching.verdicts[0][1].verdict
    assert (verdict.ranks, verdict.group) == ((1,), columns)
    marked = [watching.markers(rank)[0] for rank in (0, 2, 3)]
    assert {marker.ruling.operation_id for marker in marked} == {verdict.operation_id}


def test_consequences_are_no_change_while_the_root_is_about_to_end() -> None:
    """The late rank has entered the root operation, which continues. Another group still waits: nothing changes."""
    world = FakeWorld(4)
    world.ranks[0].enter(group_of(0, 2), 5.0)
    world.ranks[1].enter(group_of(1, 2), 5.5)
    watching = Watching(world).until(17.0)
    world.ranks[2].enter(group_of(0, 2), 17.0)
    watching.until(24.0)
    assert len(watching.verdicts) == 1


def test_reported_root_stays_among_equals() -> None:
    """An independent stall that has waited longer than the root does not replace it: there is one incident."""
    world = FakeWorld(5)
    world.ranks[0].enter(group_of(0, 1), 5.0)
    world.ranks[3].enter(group_of(3, 4), 7.0)
    world.ranks[1].enter(group_of(1, 2), 8.0)
    watching = Watching(world).until(24.0)
    assert [event.verdict.ranks for _, event in watching.verdicts] == [(2,)]


def test_consequences_get_time_to_go_on() -> None:
    """When the root ends, operations that waited behind it become stalls only after the threshold has passed again."""
    world = FakeWorld(4)
    first = world.ranks[0].enter(group_of(0, 2), 5.0)
    world.ranks[1].enter(group_of(1, 2), 5.5)
    watching = Watching(world).until(17.0)
    world.ranks[2].end(world.ranks[2].enter(group_of(0, 2), 17.0), 17.1)
    world.ranks[0].end(first, 17.1)
    watching.until(27.0)
    assert len(watching.ends) == 1
    assert len(watching.verdicts) == 1
    watching.until(29.0)
    again = watching.verdicts[-1][1]
    assert (again.occasion, again.verdict.ranks, again.verdict.operation_id.channel.group) == (
        Occasion.OPENED,
        (2,),
        group_of(1, 2).key,
    )


def test_tapes_that_come_back_get_later_numbers() -> None:
    """When tapes come back, earlier reports are forgotten, but their numbers are not used again."""
    watching = Watching(stalled()[0]).until(17.0)
    (end,) = watching.detector.process([])
    assert isinstance(end, IncidentResolved)
    watching.until(20.0)
    again = watching.verdicts[-1][1]
    assert again.incident == end.incident
    assert again.epoch > end.epoch


def test_operation_that_ends_by_wait_is_no_evidence() -> None:
    """A send is not reported until a thread waits for it. Its age counts from that wait."""
    world = FakeWorld(2)
    pair = group_of(0, 1)
    flags = Flag.POINT_TO_POINT | Flag.END_BY_WAIT | Flag.ASYNC
    number = world.ranks[0].enter(pair, 1.0, "recv", flags=flags, peer=1, blocking=False)
    watching = Watching(world).until(60.0)
    assert watching.reported == []
    world.ranks[0].wait_for(number, 60.0)
    watching.until(69.9)
    assert watching.reported == []
    watching.until(72.0)
    ((_, given),) = watching.verdicts
    assert given.verdict.ranks == (1,)
    assert ages_s(watching.markers(0))[0] < 11


def test_asynchronous_operation_counts_from_its_start() -> None:
    """An operation in flight that does not complete is a stall, although no thread is known to wait."""
    world = FakeWorld(2)
    world.ranks[0].enter(group_of(0, 1), 5.0, flags=Flag.ASYNC, blocking=False)
    watching = Watching(world).until(17.0)
    assert [event.verdict.ranks for _, event in watching.verdicts] == [(1,)]


def test_successor_continues_the_numbers() -> None:
    """A process that takes over reports the same incident under later numbers, so that no span id repeats."""
    world, _ = stalled()
    before = Watching(world).until(50.0)
    after = Watching(world, began_s=50.0).until(100.0)
    first, second = before.verdicts[-1][1], after.verdicts[0][1]
    assert first.incident == second.incident
    assert second.epoch_before is None
    assert second.epoch > first.epoch
    assert after.markers(0)[0].nth > before.markers(0)[-1].nth
    numbers = [event.epoch for _, event in [*before.verdicts, *after.verdicts]]
    assert numbers == sorted(set(numbers))


def test_take_over_from_a_successor() -> None:
    """The third process does not reuse a number of the second either."""
    world, _ = stalled()
    numbers: list[int] = []
    for began_s in (0.0, 17.0, 30.0):
        watching = Watching(world, began_s=began_s).until(began_s + 17.0 if began_s == 0 else began_s + 12.0)
        numbers += [event.epoch for _, event in watching.verdicts]
    assert len(numbers) >= 3
    assert numbers == sorted(set(numbers))
