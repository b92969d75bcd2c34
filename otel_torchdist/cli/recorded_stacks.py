"""Stacks that a rank has written because somebody else asked for them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Final

from otel_torchdist.stall.world import RankView, Stacks
from otel_torchdist.tape.stacks import ThreadStack, read_stacks, stacks_path

_OF_ANY_REQUEST: Final = 0


class RecordedStacks:
    """What one rank last wrote of its stacks. Asks for nothing."""

    def __init__(self, tape: Path) -> None:
        """Look beside this tape."""
        self._tape = tape
        self._written_ns = 0
        self._threads: tuple[ThreadStack, ...] | None = None

    def shown_in(self, view: RankView) -> RankView:
        """The rank with these stacks, if it has recorded nothing since: then that is where it still is."""
        self._renew()
        written_ns = self._written_ns - view.wall_offset_ns
        if self._threads is None or written_ns < last_record_ns(view):
            return view
        return dataclasses.replace(view, stacks=Stacks(written_ns, self._threads))

    def _renew(self) -> None:
        try:
            written_ns = stacks_path(self._tape).stat().st_mtime_ns
        except OSError:
            return
        if written_ns != self._written_ns:
            self._written_ns = written_ns
            threads = read_stacks(self._tape, _OF_ANY_REQUEST)
            self._threads = None if threads is None else tuple(threads)


def last_record_ns(view: RankView) -> int:
    """The monotonic time of the newest thing on a rank's tape, its heartbeat aside."""
    records = [operation.record for operation in view.open]
    times = [view.created_ns]
    for record in records:
        times += [record.entered_ns, record.returned_ns or 0, record.wait_entered_ns or 0, record.wait_returned_ns or 0]
    if view.last is not None:
        times.append(view.last.record.completed_ns or 0)
    return max(times)
