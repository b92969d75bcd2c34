"""Mismatched calls that block no rank: detected at any call rate, reported once, and never for matching calls."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_torchdist.judge.stall.findings.silent_mismatch import REPORTED_AFTER_NS, SilentMismatches
from otel_torchdist.judge.world.following.channels import LENGTH, CallLog, Digests
from otel_torchdist.judge.world.mismatch import Field
from otel_torchdist.model.calls import Arrival
from otel_torchdist.model.kinds import TapeState
from otel_torchdist.model.names import SignatureName
from otel_torchdist.model.reports.finding import Finding, FindingKind
from otel_torchdist.model.reports.verdict_kinds import VerdictKind
from otel_torchdist.telemetry import semconv
from tests.support.worlds.detectors import EVERYBODY, THRESHOLD_S, Watching
from tests.support.worlds.fake_world import SECOND, FakeWorld
from tests.support.worlds.group_order import members_only, other_order

SUM = SignatureName("all_reduce", "sum", ((4,),), ("float32",), "cpu", 1)
MAX = dataclasses.replace(SUM, reduce_op="max")
NCCL = dataclasses.replace(EVERYBODY, name=dataclasses.replace(EVERYBODY.name, backend="nccl"))
REPORTED_AFTER_S = REPORTED_AFTER_NS / SECOND


def findings(watching: Watching) -> list[Finding]:
    """The mismatches reported."""
    found = [event for _, event in watching.events if isinstance(event, Finding)]
    return [one for one in found if one.kind is FindingKind.MISMATCHED]


def field_of(found: Finding) -> Field:
    """Return the property that differs."""
    return Field(found.attributes[semconv.MISMATCH_FIELD])


def sequence_of(found: Finding) -> object:
    """The position of the mismatch in its group."""
    return found.attributes[semconv.MISMATCH_SEQUENCE]


def run_through(world: FakeWorld, at_s: float, odd: int = -1, **differs: Any) -> None:
    """Let all ranks make a call that completes; one rank may make a different call."""
    for rank in world.ranks:
        number = rank.enter(EVERYBODY, at_s, **(differs if rank.rank == odd else {}))
        rank.end(number, at_s + 0.001)


def test_slow_traffic() -> None:
    """One call per second, one with another reduce op: reported in time, once, with field and rank."""
    world = FakeWorld(4)
    watching = Watching(world)
    for second in range(40):
        run_through(world, float(second), odd=2 if second == 5 else -1, reduce_op="max")
        watching.until(second + 1.0)
    [found] = findings(watching)
    assert (field_of(found), found.ranks, sequence_of(found)) == (
        Field.REDUCE_OP,
        (2,),
        6,
    )
    assert found.world.taken_ns - world.snapshot(5.0).taken_ns <= (REPORTED_AFTER_S + 2) * SECOND
    assert watching.verdicts == []


def test_calls_that_fit_are_silent() -> None:
    """Nothing is reported about a healthy run."""
    world = FakeWorld(4)
    watching = Watching(world)
    for second in range(30):
        run_through(world, float(second))
        watching.until(second + 1.0)
    assert watching.reported == []


def test_cause_of_a_stall_is_not_reported_twice() -> None:
    """A mismatch that blocks ranks gives a verdict, and no additional finding."""
    world = FakeWorld(4)
    for rank in world.ranks:
        rank.enter(EVERYBODY, 1.0, "barrier" if rank.rank == 2 else "all_reduce")
    watching = Watching(world).until(THRESHOLD_S + 20)
    assert len(watching.verdicts) >= 1
    assert findings(watching) == []


def logged(calls: list[Arrival]) -> CallLog:
    """A log with these calls."""
    log, digests = CallLog(), Digests()
    for call in calls:
        log.entered(call, call.sequence, digests)
    return log


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 3 * LENGTH), st.integers(0, 3))
def test_one_odd_call_changes_its_window_only(odd: int, later: int) -> None:
    """Windows with the same calls have equal digests. A different call changes only its own window, which is kept."""
    length = (3 + later) * LENGTH
    same = logged([Arrival(sequence, SUM, -1) for sequence in range(1, length + 1)])
    other = logged([Arrival(sequence, MAX if sequence == odd else SUM, -1) for sequence in range(1, length + 1)])
    pairs = list(zip(same.windows, other.windows, strict=True))
    differing = [one.number for one, two in pairs if one.digest != two.digest]
    kept = [one.number for one, _ in pairs]
    assert differing == [number for number in kept if number == (odd - 1) // LENGTH]


def test_dense_traffic_is_compared_by_windows() -> None:
    """With hundreds of calls between two polls, a different call is found in its window, although it is not recent."""
    world, odd = FakeWorld(2), 3 * LENGTH + 7
    for sequence in range(1, 5 * LENGTH):
        run_through(world, sequence / 1000, odd=1 if sequence == odd else -1, reduce_op="max")
    watching = Watching(world).until(REPORTED_AFTER_S + 5)
    [found] = findings(watching)
    assert (field_of(found), sequence_of(found)) == (Field.REDUCE_OP, odd)


def test_calls_of_another_node_are_requested() -> None:
    """For remote ranks only digests are known: the differing window is requested, and reported when it arrives."""
    same = logged([Arrival(sequence, SUM, -1) for sequence in range(1, 2 * LENGTH + 1)])
    odd = logged([Arrival(sequence, MAX if sequence == 70 else SUM, -1) for sequence in range(1, 2 * LENGTH + 1)])
    world = FakeWorld(4)
    run_through(world, 1.0)
    channel = next(iter(world.ranks[0].progress))
    digests = tuple(window._replace(arrivals=()) for window in odd.windows)
    watch, found_so_far = SilentMismatches(), []
    for second in range(1, 20):
        run_through(world, float(second))  # as many more calls as seconds, which match
        shown = {rank: {channel: same.windows} for rank in range(3)}
        shown[3] = {channel: odd.windows if (channel, 1) in watch.wanted and second > 3 else digests}
        snapshot = world.snapshot(float(second))
        views = {rank: dataclasses.replace(view, windows=shown[rank]) for rank, view in snapshot.ranks.items()}
        found_so_far += watch.find(dataclasses.replace(snapshot, ranks=views))
        assert (watch.wanted == {(channel, 1)}) == (second <= 3)
    [found] = found_so_far
    assert (found.field, found.ranks, found.operation_id.sequence) == (Field.REDUCE_OP, (3,), 70)


def test_hole_in_the_records_leaves_its_window_out() -> None:
    """A window with lost calls is left out, and the next window is complete."""
    calls = [Arrival(sequence, SUM, -1) for sequence in range(1, 3 * LENGTH + 1) if sequence != 70]
    assert [window.number for window in logged(calls).windows] == [0, 2]


@given(st.lists(st.integers(1, 5 * LENGTH), max_size=3), st.lists(st.integers(1, 5 * LENGTH), max_size=2))
@settings(max_examples=100, deadline=None)
def test_windows_hold_what_was_called(losses: list[int], refusals: list[int]) -> None:
    """Every window has exactly its 64 calls in order, whatever calls are lost, or refused and retried."""
    log, digests, sequence = CallLog(), Digests(), 1
    while sequence <= 8 * LENGTH:
        log.entered(Arrival(sequence, SUM, -1), sequence, digests)
        if sequence in refusals:  # it raised, and the next call takes its number
            refusals.remove(sequence)
            continue
        sequence += 1 + (LENGTH if sequence in losses else 0)
    for window in log.windows:
        first = window.number * LENGTH + 1
        assert [arrival.sequence for arrival in window.arrivals] == list(range(first, first + LENGTH))
    assert log.windows
    assert log.times is not None
    assert log.times.times == tuple(arrival.sequence for arrival in log.windows[-1].arrivals)


def ending(world: FakeWorld, at_s: float) -> None:
    """All ranks end cleanly."""
    for rank in world.ranks:
        rank.die(at_s, TapeState.FINISHED)


def test_job_that_ends_at_once() -> None:
    """The job ends after three seconds: the mismatch is reported within two more seconds, once."""
    world = FakeWorld(4)
    watching = Watching(world)
    run_through(world, 1.0, odd=2, dtype="int32")
    watching.until(3.0)
    assert watching.reported == []
    ending(world, 3.0)
    watching.until(5.0)
    assert [found.ranks for found in findings(watching)] == [(2,)]
    watching.until(40.0)
    assert len(findings(watching)) == 1


def test_job_that_fails() -> None:
    """The same if a rank raises for another reason, and a launcher kills the other ranks."""
    world = FakeWorld(4)
    watching = Watching(world)
    run_through(world, 1.0, odd=2, dtype="int32")
    watching.until(3.0)
    world.ranks[0].die(3.0, TapeState.FAILED, "ValueError")
    for rank in world.ranks[1:]:
        rank.die(3.1)
    watching.until(5.5)
    assert [found.ranks for found in findings(watching)] == [(2,)]


def test_reader_that_leaves_while_ranks_live() -> None:
    """It reports mismatches that all ranks have completed. A mismatch that blocks ranks is not a finding."""
    world = FakeWorld(4)
    watching = Watching(world)
    run_through(world, 1.0, odd=2, dtype="int32")
    watching.until(2.0)
    [found] = watching.detector.process([world.snapshot(2.1)], is_last=True)
    assert isinstance(found, Finding)
    assert found.ranks == (2,)
    stuck = FakeWorld(4)
    for rank in stuck.ranks:
        rank.enter(EVERYBODY, 1.0, "barrier" if rank.rank == 2 else "all_reduce")
    watching = Watching(stuck).until(2.0)
    assert watching.detector.process([stuck.snapshot(2.1)], is_last=True) == []


def test_calls_after_the_last_whole_window_are_compared_at_the_end() -> None:
    """The last window has ten calls, more than the eight recent ones that ranks keep: its first is compared too."""
    log, digests = CallLog(), Digests()
    for sequence in range(1, LENGTH + 11):
        log.entered(Arrival(sequence, MAX if sequence == LENGTH + 1 else SUM, -1), sequence, digests)
    rest = log.unfinished(digests)
    assert rest is not None
    assert (rest.number, len(rest.arrivals), rest.arrivals[0].signature) == (1, 10, MAX)
    assert CallLog().unfinished(digests) is None


@pytest.mark.parametrize(("odd", "expected"), [(0, []), (15, [15])])
def test_windows_of_different_length_are_compared_as_far_as_they_go(odd: int, expected: list[int]) -> None:
    """One rank died seven calls earlier: its calls are a prefix of the others' calls, so nothing differs."""
    world = FakeWorld(2)
    for sequence in range(1, 28):
        for rank in world.ranks[0 if sequence <= 20 else 1 :]:
            is_odd = (rank.rank, sequence) == (1, odd)
            rank.end(rank.enter(EVERYBODY, sequence / 1000, reduce_op="max" if is_odd else "sum"), sequence / 1000)
    ending(world, 1.0)
    watching = Watching(world).until(5.0)
    assert [sequence_of(found) for found in findings(watching)] == expected


def test_harmless_difference_hides_no_later_one() -> None:
    """A legal difference in the first window does not prevent the comparison of the second."""
    world = FakeWorld(2)
    for sequence in range(1, 2 * LENGTH + 1):
        odd = {5: {"shape": (4, 4)}, LENGTH + 5: {"reduce_op": "max"}}.get(sequence, {})
        run_through(world, 0.0, odd=1, **odd)
    watching = Watching(world)
    for second in range(int(REPORTED_AFTER_S) + 5):
        run_through(world, float(second))
        watching.until(second + 1.0)
    assert [field_of(found) for found in findings(watching)] == [Field.REDUCE_OP]


@pytest.mark.parametrize("operation", ["all_reduce", "all_gather", "broadcast", "reduce", "all_gather_into_tensor"])
def test_transposed_tensor_is_found(operation: str) -> None:
    """8x4 on one rank and 4x8 on the others is a finding, but not the cause of a stall."""
    world = FakeWorld(4)
    watching = Watching(world)
    for rank in world.ranks:
        shape = (8, 4) if rank.rank == 2 else (4, 8)
        rank.end(rank.enter(EVERYBODY, 1.0, operation, shape=shape, peer=0), 1.1)
    for rank in world.ranks[1:]:
        rank.enter(EVERYBODY, 2.0)
    watching.until(REPORTED_AFTER_S + 5)
    [found] = findings(watching)
    assert (field_of(found), found.ranks) == (Field.DIMENSIONS, (2,))
    assert found.text == (
        f"rank 2 has dimensions 8x4 where ranks 0-1,3 have 4x8 in {operation} (sequence 1, default_pg) at train, "
        "train.py:42; it did not hang, but results may be wrong"
    )
    assert {event.verdict.ranks for _, event in watching.verdicts} == {(0,)}


@pytest.mark.parametrize(
    ("operation", "shapes"),
    [
        ("all_reduce", [(4, 8), (32,), (2, 2, 8), (4, 8)]),
        ("all_reduce", [(1, 32), (32, 1), (1, 32), (32, 1)]),
        ("all_gather", [(4, 8), (5, 8), (6, 8), (1, 8)]),
        ("all_to_all", [(4, 8), (8, 4), (2, 16), (4, 8)]),
        ("all_to_all_single", [(4, 8), (8, 4), (2, 16), (4, 8)]),
        ("reduce_scatter", [(4, 8), (8, 4), (2, 16), (4, 8)]),
        ("scatter", [(4, 8), (8, 4), (2, 16), (4, 8)]),
    ],
)
def test_shapes_that_may_differ(operation: str, shapes: list[tuple[int, ...]]) -> None:
    """Flattened tensors, rows and columns, uneven shards, and operations that split their tensor are legal."""
    world = FakeWorld(4)
    watching = Watching(world)
    for rank, shape in zip(world.ranks, shapes, strict=True):
        rank.end(rank.enter(NCCL, 1.0, operation, shape=shape, peer=0), 1.1)
    watching.until(REPORTED_AFTER_S + 5)
    assert watching.reported == []


def test_transposed_tensor_hides_no_other_dtype() -> None:
    """The transposed tensor is reported, and so is a later mismatch of another kind in the same group."""
    world = FakeWorld(4)
    watching = Watching(world)
    for second in range(40):
        for rank in world.ranks:
            shape = (8, 4) if rank.rank == 2 else (4, 8)
            dtype = "int32" if rank.rank == 1 and second == 25 else "float32"
            rank.end(rank.enter(EVERYBODY, float(second), shape=shape, dtype=dtype), second + 0.1)
        watching.until(second + 1.0)
    assert [(field_of(found), found.ranks) for found in findings(watching)] == [
        (Field.DIMENSIONS, (2,)),
        (Field.DTYPE, (1,)),
    ]


# ----------------------------------------------------------------------------------------------------------------------
# Groups that ranks have created in another order, in a job that goes on: its calls go with those of other groups.


def go_on(world: FakeWorld, watching: Watching, seconds: int) -> None:
    """All ranks make a call each second."""
    for second in range(seconds):
        for rank in world.ranks:
            rank.end(rank.enter(EVERYBODY, second), second + 0.001)
        watching.until(second + 1.0)


def test_another_order_is_found_once() -> None:
    """If nothing hangs, the rank that differs from all others is named once for all affected groups."""
    world, _ = other_order()
    watching = Watching(world)
    go_on(world, watching, 40)
    [found] = findings(watching)
    assert (field_of(found), found.ranks) == (Field.MEMBERS, (3,))
    assert found.text == (
        "rank 3 has created group 2 with ranks 2-3, where ranks 0-2 have created it with ranks 1,3; it did not "
        "hang, but results may be wrong"
    )


def test_verdict_is_not_followed_by_a_finding() -> None:
    """The mismatch that explained a stall is not reported again."""
    world, groups = other_order()
    watching = Watching(world)
    world.ranks[1].enter(groups[1]["n2"], 0.0)
    watching.until(40.0)
    assert {given.verdict.kind for _, given in watching.verdicts} == {VerdictKind.MISMATCHED}
    assert findings(watching) == []


def test_groups_of_members_only_are_no_finding() -> None:
    """Groups with the same number and no common member may have been created one after the other, and work."""
    world, _ = members_only()
    watching = Watching(world)
    go_on(world, watching, 40)
    assert findings(watching) == []
