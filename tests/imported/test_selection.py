"""Which ranks and calls are chosen, and that what is left out is counted."""

from __future__ import annotations

import dataclasses

from otel_torchdist.imported.selection import MAX_CALLS, MAX_RANKS, USUAL_LAST, Selection, select
from otel_torchdist.world.model import OperationView
from tests.imported.recordings import RecordedWorld, stalled
from tests.support.fake_world import WALL_OFFSET_NS, group_of

NOW_S = 60.0


def sequences(operations: tuple[OperationView, ...]) -> list[int]:
    """Where the calls are in their group."""
    return [operation.record.sequence for operation in operations]


def test_the_newest_calls_of_each_rank() -> None:
    """Each rank's own newest calls are chosen, and the rest is counted."""
    selected = select(stalled(calls=20).recording(NOW_S), Selection(last=5))
    assert [sequences(rank.operations) for rank in selected.ranks] == [
        [17, 18, 19, 20, 21],
        [17, 18, 19, 20, 21],
        [16, 17, 18, 19, 20],
        [17, 18, 19, 20, 21],
    ]
    assert [rank.omitted for rank in selected.ranks] == [16, 16, 15, 16]


def test_an_open_call_is_never_left_out() -> None:
    """However many calls have followed in other groups: the verdict rests on it."""
    world = RecordedWorld(2)
    everyone, pair = group_of(0, 1), group_of(0, 1, nth=1)
    world.recorded[0].enter(everyone, 0.0, blocking=False)
    world.train(pair, 50, 0.1)
    selected = select(world.recording(NOW_S), Selection(last=3))
    assert sequences(selected.ranks[0].operations) == [1, 48, 49, 50]
    assert selected.ranks[0].omitted == 47


def test_the_usual_number_is_lower_among_many_ranks() -> None:
    """A trace has a bounded number of calls unless the user states how many of each rank."""
    few = stalled(ranks=4, calls=USUAL_LAST + 50).recording(NOW_S)
    assert select(few, Selection()).last == USUAL_LAST
    many = stalled(ranks=MAX_RANKS, calls=100).recording(NOW_S)
    selected = select(many, Selection())
    assert selected.last == MAX_CALLS // MAX_RANKS
    assert selected.calls <= MAX_CALLS
    assert select(many, Selection(last=101)).calls == many.calls


def test_ranks_of_interest() -> None:
    """Of too many ranks those are chosen that the verdict names, then those that wait; or those that the user names."""
    recording = stalled(ranks=MAX_RANKS + 6, calls=2, absent=MAX_RANKS + 3).recording(NOW_S)
    selected = select(recording, Selection())
    chosen = [rank.history.rank for rank in selected.ranks]
    assert chosen == [*range(MAX_RANKS - 1), MAX_RANKS + 3]
    assert selected.other_ranks == (*range(MAX_RANKS - 1, MAX_RANKS + 3), *range(MAX_RANKS + 4, MAX_RANKS + 6))
    wanted = select(recording, Selection(ranks=frozenset({1, 65, 500})))
    assert [rank.history.rank for rank in wanted.ranks] == [1, 65]


def test_calls_without_a_time_are_not_drawn() -> None:
    """A dump may hold 0 in place of a time: such a call would stretch the trace to 1970."""
    recording = stalled(calls=3).recording(NOW_S)
    history = recording.histories[0]
    first = history.operations[0]
    untimed = dataclasses.replace(first, record=dataclasses.replace(first.record, entered_ns=-WALL_OFFSET_NS))
    odd = dataclasses.replace(history, operations=(untimed, *history.operations[1:]))
    recording = dataclasses.replace(recording, histories=(odd, *recording.histories[1:]))
    [rank, *_] = select(recording, Selection()).ranks
    assert (sequences(rank.operations), rank.omitted) == ([2, 3, 4], 1)
