"""Calls that do not fit and hold nobody up: found at any speed, told once, and not where they fit."""

import dataclasses

from hypothesis import given, settings
from hypothesis import strategies as st

from otel_torchdist.stall.call_log import LENGTH, CallLog, Digests
from otel_torchdist.stall.events import MismatchFound
from otel_torchdist.stall.mismatch import Field
from otel_torchdist.stall.silent_mismatch import TOLD_AFTER_NS, SilentMismatches
from otel_torchdist.stall.world import Arrival, WorldSnapshot
from otel_torchdist.tape.records import SignatureName
from tests.stall.simulated_world import SECOND, SimulatedWorld
from tests.stall.watching import EVERYBODY, THRESHOLD_S, Watching

SUM = SignatureName("all_reduce", "sum", ((4,),), ("float32",), "cpu", 1)
MAX = dataclasses.replace(SUM, reduce_op="max")
TOLD_AFTER_S = TOLD_AFTER_NS / SECOND


def findings(watching: Watching) -> list[MismatchFound]:
    """What has been told."""
    return [event for _, event in watching.events if isinstance(event, MismatchFound)]


def run_through(world: SimulatedWorld, at_s: float, odd: int = -1, **differs: str) -> None:
    """All ranks make a call that ends, one of them perhaps another."""
    for rank in world.ranks:
        number = rank.enter(EVERYBODY, at_s, **(differs if rank.rank == odd else {}))  # type: ignore[arg-type]
        rank.end(number, at_s + 0.001)


def test_slow_traffic() -> None:
    """One call a second, one of them with another reduce op: told in time, once, with field and rank."""
    world = SimulatedWorld(4)
    watching = Watching(world)
    for second in range(40):
        run_through(world, float(second), odd=2 if second == 5 else -1, reduce_op="max")
        watching.until(second + 1.0)
    [found] = findings(watching)
    assert (found.mismatch.field, found.mismatch.ranks, found.mismatch.site.sequence) == (Field.REDUCE_OP, (2,), 6)
    assert found.world.taken_ns - world.snapshot(5.0).taken_ns <= (TOLD_AFTER_S + 2) * SECOND
    assert watching.verdicts == []


def test_calls_that_fit_are_silent() -> None:
    """Nothing is told of a healthy run."""
    world = SimulatedWorld(4)
    watching = Watching(world)
    for second in range(30):
        run_through(world, float(second))
        watching.until(second + 1.0)
    assert watching.events == []


def test_cause_of_a_stall_is_not_told_twice() -> None:
    """Ranks that wait because their calls do not fit get a verdict, and no finding beside it."""
    world = SimulatedWorld(4)
    for rank in world.ranks:
        rank.enter(EVERYBODY, 1.0, "barrier" if rank.rank == 2 else "all_reduce")
    watching = Watching(world)
    watching.until(THRESHOLD_S + 20)
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
    """Dense traffic: windows of ranks that called the same are equal; an odd call shows in its own and is kept."""
    length = (3 + later) * LENGTH
    same = logged([Arrival(sequence, SUM, -1) for sequence in range(1, length + 1)])
    other = logged([Arrival(sequence, MAX if sequence == odd else SUM, -1) for sequence in range(1, length + 1)])
    pairs = list(zip(same.windows, other.windows, strict=True))
    differing = [one.number for one, two in pairs if one.digest != two.digest]
    kept = [one.number for one, _ in pairs]
    assert differing == [number for number in kept if number == (odd - 1) // LENGTH]


def test_dense_traffic_is_compared_by_windows() -> None:
    """Thousands of calls between two looks: the odd one is far from the latest, and is found in its window."""
    world = SimulatedWorld(2)
    pair_calls = {0: SUM, 1: SUM}
    logs = {rank: CallLog() for rank in pair_calls}
    digests = Digests()
    lane = None
    for sequence in range(1, 5 * LENGTH):
        run_through(world, sequence / 1000)
        for rank, log in logs.items():
            signature = MAX if (rank, sequence) == (1, 3 * LENGTH + 7) else SUM
            log.entered(Arrival(sequence, signature, -1), sequence, digests)
        lane = next(iter(world.ranks[0].progress))
    assert lane is not None
    watching = _WithWindows(world, {rank: {lane: log.windows} for rank, log in logs.items()})
    watching.until(TOLD_AFTER_S + 5)
    [found] = findings(watching)
    assert (found.mismatch.field, found.mismatch.site.sequence) == (Field.REDUCE_OP, 3 * LENGTH + 7)


def test_calls_of_another_node_are_asked_for() -> None:
    """Of a rank elsewhere only digests are known: the odd window is wanted in full, and told once it has come."""
    same = logged([Arrival(sequence, SUM, -1) for sequence in range(1, 2 * LENGTH + 1)])
    odd = logged([Arrival(sequence, MAX if sequence == 70 else SUM, -1) for sequence in range(1, 2 * LENGTH + 1)])
    world = SimulatedWorld(4)
    run_through(world, 1.0)
    lane = next(iter(world.ranks[0].progress))
    digests = tuple(window._replace(arrivals=()) for window in odd.windows)
    watch, told = SilentMismatches(), []
    for second in range(1, 20):
        run_through(world, float(second))  # as many more calls as seconds, which fit
        shown = {rank: {lane: same.windows} for rank in range(3)}
        shown[3] = {lane: odd.windows if (lane, 1) in watch.wanted and second > 3 else digests}
        picture = world.snapshot(float(second))
        views = {rank: dataclasses.replace(view, windows=shown[rank]) for rank, view in picture.ranks.items()}
        told += watch.look(dataclasses.replace(picture, ranks=views))
        assert (watch.wanted == {(lane, 1)}) == (second <= 3)
    [found] = told
    assert (found.field, found.ranks, found.site.sequence) == (Field.REDUCE_OP, (3,), 70)


class _WithWindows(Watching):
    """A watching whose ranks have these windows."""

    def __init__(self, world: SimulatedWorld, windows: dict[int, dict]) -> None:  # type: ignore[type-arg]
        super().__init__(world)
        self._windows = windows

    def _picture(self) -> WorldSnapshot:
        picture = super()._picture()
        views = {rank: dataclasses.replace(view, windows=self._windows[rank]) for rank, view in picture.ranks.items()}
        return dataclasses.replace(picture, ranks=views)


def test_hole_in_the_records_leaves_its_window_out() -> None:
    """Calls that were lost make no window, and the next one is whole again."""
    calls = [Arrival(sequence, SUM, -1) for sequence in range(1, 3 * LENGTH + 1) if sequence != 70]
    assert [window.number for window in logged(calls).windows] == [0, 2]


@given(st.lists(st.integers(1, 5 * LENGTH), max_size=3), st.lists(st.integers(1, 5 * LENGTH), max_size=2))
@settings(max_examples=100, deadline=None)
def test_windows_hold_what_was_called(losses: list[int], refusals: list[int]) -> None:
    """Whatever is lost (also whole windows), or refused and called again: a window has its own 64 calls in order."""
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
