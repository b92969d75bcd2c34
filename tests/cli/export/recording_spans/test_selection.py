"""The choice of ranks and calls, and the count of calls left out."""

from __future__ import annotations

import dataclasses

import msgspec

from otel_torchdist.cli.export.recording_spans.recording import DEFAULT_CALLS, MAX_CALLS, MAX_RANKS
from otel_torchdist.model.calls import OperationView
from tests.cli.export.recording_spans.recordings import RecordedWorld, stalled
from tests.support.worlds.fake_world import WALL_OFFSET_NS, group_of

NOW_S = 60.0


def sequences(operations: tuple[OperationView, ...]) -> list[int]:
    """Return the sequence numbers of the calls."""
    return [operation.record.sequence for operation in operations]


def test_the_newest_calls_of_each_rank() -> None:
    """Each rank's own newest calls are chosen, and the rest is counted."""
    selected = stalled(calls=20).found(NOW_S).selected(last=5)
    assert [sequences(rank.operations) for rank in selected.ranks] == [
        [17, 18, 19, 20, 21],
        [17, 18, 19, 20, 21],
        [16, 17, 18, 19, 20],
        [17, 18, 19, 20, 21],
    ]
    assert [rank.omitted for rank in selected.ranks] == [16, 16, 15, 16]


def test_an_open_call_is_never_left_out() -> None:
    """An open call is kept however many calls followed in other groups: the verdict is based on it."""
    world = RecordedWorld(2)
    everyone, pair = group_of(0, 1), group_of(0, 1, nth=1)
    world.recorded[0].enter(everyone, 0.0, blocking=False)
    world.train(pair, 50, 0.1)
    selected = world.found(NOW_S).selected(last=3)
    assert sequences(selected.ranks[0].operations) == [1, 48, 49, 50]
    assert selected.ranks[0].omitted == 47


def test_the_usual_number_is_lower_among_many_ranks() -> None:
    """A trace has a bounded number of calls unless the user states how many of each rank."""
    few = stalled(ranks=4, calls=DEFAULT_CALLS + 50).found(NOW_S)
    assert few.selected().choice.last == DEFAULT_CALLS
    many = stalled(ranks=MAX_RANKS, calls=100).found(NOW_S)
    assert many.selected().choice.last == MAX_CALLS // MAX_RANKS
    assert sum(len(rank.operations) for rank in many.selected().ranks) <= MAX_CALLS
    assert not any(rank.omitted for rank in many.selected(last=101).ranks)


def test_ranks_of_interest() -> None:
    """Of too many ranks those are chosen that the verdict names, then those that wait; or those that the user names."""
    found = stalled(ranks=MAX_RANKS + 6, calls=2, absent=MAX_RANKS + 3).found(NOW_S)
    selected = found.selected()
    assert [rank.rank for rank in selected.chosen] == [*range(MAX_RANKS - 1), MAX_RANKS + 3]
    assert [rank.rank for rank in selected.ranks] == [*range(MAX_RANKS + 6)]
    wanted = found.selected(ranks=frozenset({1, 65, 500}))
    assert [rank.rank for rank in wanted.chosen] == [1, 65]


def test_calls_without_a_time_are_not_drawn() -> None:
    """A dump may hold 0 in place of a time: such a call would stretch the trace to 1970."""
    found = stalled(calls=3).found(NOW_S)
    history = found.histories[0]
    first = history.operations[0]
    untimed = dataclasses.replace(first, record=msgspec.structs.replace(first.record, entered_ns=-WALL_OFFSET_NS))
    odd = dataclasses.replace(history, operations=(untimed, *history.operations[1:]))
    [rank, *_] = dataclasses.replace(found, histories=(odd, *found.histories[1:])).selected().ranks
    assert (sequences(rank.operations), rank.omitted) == ([2, 3, 4], 1)
