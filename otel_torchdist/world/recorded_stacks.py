"""Stacks that a rank has written at the request of another process."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Final

from otel_torchdist.job.requests.fault_handler import last_stack, offer_path
from otel_torchdist.job.requests.stacks import stacks_path
from otel_torchdist.job.requests.stacks_file import read_stacks
from otel_torchdist.model.snapshot import RankView
from otel_torchdist.model.stacks import Stacks, ThreadStack

_OF_ANY_REQUEST: Final = 0


class RecordedStacks:
    """The stacks that one rank last wrote, by itself or when a signal made it. Requests nothing."""

    def __init__(self, tape: Path, owner: int | None = None) -> None:
        """Read the files beside a tape.

        Args:
            tape: The tape.
            owner: The user who must own them; None for any.
        """
        self._tape = tape
        self._owner = owner
        self._of_threads = _File(stacks_path(tape))
        self._of_signal = _File(offer_path(tape))
        self._newest: Stacks | None = None

    def shown_in(self, view: RankView) -> RankView:
        """Add these stacks to a view, if the rank has recorded nothing since and so is still there.

        `Stacks.asked_ns` is when they were written.
        """
        if any([self._of_threads.has_changed(), self._of_signal.has_changed()]):
            self._newest = self._read()
        if self._newest is None:
            return view
        written_ns = self._newest.asked_ns - view.wall_offset_ns
        if written_ns < last_record_ns(view):
            return view
        return dataclasses.replace(view, stacks=dataclasses.replace(self._newest, asked_ns=written_ns))

    def _read(self) -> Stacks | None:
        """The newer of the two kinds, with the wall-clock time at which it was written."""
        found: list[Stacks] = []
        threads = read_stacks(self._tape, _OF_ANY_REQUEST, self._owner)
        if threads is not None:
            found.append(Stacks(self._of_threads.written_ns, tuple(threads)))
        frames = last_stack(offer_path(self._tape), self._owner)
        if frames:
            found.append(Stacks(self._of_signal.written_ns, (ThreadStack(0, "", frames),), by_signal=True))
        return max(found, key=lambda stacks: stacks.asked_ns, default=None)


class _File:
    """Detects changes to a file that is replaced or grows.

    Attributes:
        written_ns: Wall-clock time of its last known change; 0 while there is no file.
    """

    def __init__(self, path: Path) -> None:
        self.written_ns = 0
        self._path = path
        self._size = 0

    def has_changed(self) -> bool:
        """Check the file; returns whether it has changed since the last check."""
        before = self.written_ns, self._size
        try:
            facts = os.stat(self._path)
        except OSError:
            return False
        self.written_ns, self._size = facts.st_mtime_ns, facts.st_size
        return before != (self.written_ns, self._size)


def last_record_ns(view: RankView) -> int:
    """The monotonic time of the newest record on a rank's tape, its heartbeat aside."""
    records = [operation.record for operation in view.open]
    times = [view.created_ns]
    for record in records:
        times += [record.entered_ns, record.returned_ns or 0, record.wait_entered_ns or 0, record.wait_returned_ns or 0]
    if view.last is not None:
        times.append(view.last.record.completed_ns or 0)
    return max(times)
