"""Call histories of a run, from its tapes."""

from __future__ import annotations

import time

from otel_torchdist.errors import TapeError
from otel_torchdist.judge.world.resolved import ResolvedNames
from otel_torchdist.model.history import Activity, RankHistory
from otel_torchdist.model.operations import Operation, StepMark
from otel_torchdist.node.job.runs.runs import Run
from otel_torchdist.system.progress import Advance, unreported
from otel_torchdist.tape.reading.batch import Batch
from otel_torchdist.tape.reading.reader import TapeReader


def histories_of(run: Run, advance: Advance = unreported) -> tuple[list[RankHistory], list[str]]:
    """Read all tapes of a run to their ends.

    Args:
        run: The run.
        advance: Called for each tape.

    Returns:
        The histories by ascending rank, and one line for each unreadable tape, with the reason.
    """
    histories: list[RankHistory] = []
    unreadable: list[str] = []
    for tape in sorted(run.tapes, key=lambda tape: tape.identity.rank):
        try:
            histories.append(history_of(tape))
        except TapeError as error:
            unreadable.append(f"{tape.path}: {error}")
        advance(1)
    return histories, unreadable


def history_of(tape: TapeReader) -> RankHistory:
    """Read a tape that has not been polled yet, to its current end. Its rank may be running.

    Raises:
        TapeError: The tape has become unreadable.
    """
    recorder = TapeHistory(tape)
    for batch in tape.poll_to_end():
        recorder.observe(batch)
    return recorder.history()


class TapeHistory:
    """All records read from a tape. The code that polls the tape must pass every batch to `observe`."""

    def __init__(self, tape: TapeReader) -> None:
        """Start without records."""
        self._tape = tape
        self._operations: dict[int, Operation] = {}
        self._activities: dict[int, Activity] = {}
        self._steps: list[StepMark] = []

    def observe(self, batch: Batch) -> None:
        """Add the records of one batch."""
        for operation in (*batch.entered, *batch.ended):
            self._operations[operation.number] = operation
        for activity in (*batch.activities_entered, *batch.activities_ended):
            self._activities[activity.number] = activity
        self._steps += batch.steps

    def history(self) -> RankHistory:
        """Return the history so far, without records that only a forged tape can contain."""
        tape = self._tape
        names = ResolvedNames(tape.names, tape.identity.rank, tape.identity.world)
        tape.names.refresh()  # includes groups that no record refers to yet
        groups = map(names.group, tape.names.group_ids())
        identity, status = tape.identity, tape.status()
        operations = [
            call for _, call in sorted(self._operations.items()) if not _overflows(call.entered_ns, call.sequence)
        ]
        steps = [mark for mark in self._steps if not _overflows(mark.ended_ns, mark.sequence)]
        return RankHistory(
            rank=identity.rank,
            world_size=identity.world_size,
            host=identity.host,
            wall_offset_ns=status.realtime_ns - status.monotonic_ns,
            operations=tuple(map(names.operation, operations)),
            lost=tape.lost + len(self._operations) - len(operations),
            clock=f"{identity.boot_id:032x}" if identity.boot_id else "",
            until_ns=time.monotonic_ns() if tape.is_alive() else status.heartbeat_ns,
            groups=tuple(group for group in groups if group is not None),
            steps=tuple(sorted(steps, key=lambda mark: mark.number)),
            activities=tuple(activity for _, activity in sorted(self._activities.items())),
        )


def _overflows(time_ns: int, sequence: int) -> bool:
    """Return whether a number exceeds the signed 64-bit columns of `RankCalls`. Only forged records have any."""
    return bool((time_ns | sequence) >> 63)
