"""Activities do not affect judgment: a rank's snapshot is the same with and without them on its tape."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import msgspec
import pytest

from otel_torchdist.model.calls import OperationView
from otel_torchdist.model.kinds import ActivityKind, How
from otel_torchdist.model.names import GroupName
from otel_torchdist.model.snapshot import RankView
from otel_torchdist.node.job.runs.lives import waits
from otel_torchdist.tape import layout
from otel_torchdist.tape.layout import prepare_activity
from tests.support.tapes.fake_tape import SECOND, FollowedTape

PAIR = GroupName("1", "mesh_dp", (0, 1), 1, "gloo", True)


def enter_activity(rank: FollowedTape, at_ns: int) -> int:
    """Record the start of an activity."""
    prepared = prepare_activity(ActivityKind.OPTIMIZER_STEP, 0, 7)
    return rank.writer.begin_prepared(at_ns, 0, 0, prepared)


def write(rank: FollowedTape, with_activities: bool, last_is_open: bool) -> RankView:
    """Record collectives of two groups, the sixth lost, the last possibly open, with or without activities."""

    def activity(ends: bool) -> None:
        if with_activities:
            number = enter_activity(rank, SECOND)
            if ends:
                rank.writer.complete(number, SECOND, 3 * SECOND, How.ABANDONED)

    activity(ends=False)
    for sequence in range(1, 6):
        rank.run(sequence)
        activity(ends=True)
    rank.poll()
    damaged = rank.writer.next_number()
    for sequence in range(6, 9):
        rank.run(sequence)
        rank.run(sequence, PAIR)
        activity(ends=sequence < 7)
    rank.writer.view()[layout.RING_OFFSET + damaged * layout.RECORD_SIZE + layout.PAYLOAD_OFFSET] ^= 1
    rank.poll()
    if last_is_open:
        rank.enter(9, 4 * SECOND)
    activity(ends=False)
    return rank.view()


def without_numbers(operation: OperationView | None) -> OperationView | None:
    """Return an operation without its record number, which counts activities too."""
    return operation and dataclasses.replace(operation, record=msgspec.structs.replace(operation.record, number=0))


def judged(view: RankView) -> list[object]:
    """Return the evidence in a view, without the tape's process, clock and record numbers."""
    operations = [without_numbers(operation) for operation in (*view.open, view.last)]
    return [operations, view.progress, view.losses, view.forgotten, view.windows, view.arrivals, view.groups, view.step]


@pytest.mark.parametrize("last_is_open", [False, True])
def test_same_snapshot(tmp_path: Path, last_is_open: bool) -> None:
    """Open operations, waits, calls, positions and lost records are the same with activities."""
    plain, busy = FollowedTape(tmp_path, 0), FollowedTape(tmp_path, 1)
    without, with_activities = write(plain, False, last_is_open), write(busy, True, last_is_open)
    assert len(busy.reader.open_activities()) == 4
    assert judged(with_activities) == judged(without)
    assert len(with_activities.open) == last_is_open
    assert waits(busy.reader) == waits(plain.reader) == last_is_open
    assert {progress.losses for progress in with_activities.progress.values()} == {1}
    plain.close()
    busy.close()
