"""The launch: the creation of the default group, from where ranks look for their store.

The rank that hosts the store waits there for all others, which torch does before it creates the group. So the tape
begins there, and the operation that is open goes on when the group is created in the store.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from otel_torchdist import guard
from otel_torchdist.capture.c10d.groups.meeting import Meeting, meeting_of
from otel_torchdist.capture.c10d.groups.rendezvous import DEFAULT_GROUP, GroupEvents, Rendezvous, recorded
from otel_torchdist.capture.torch_api import c10d

if TYPE_CHECKING:
    from otel_torchdist.capture.recorder import Recorder


_MAX_DEPTH: Final = 6
"""Frames between ``next`` on the stores and ``init_process_group``: those of this module and of the guard."""


class Launch:
    """The creation of the default group from where ranks look for their store; there, the one that hosts it waits.

    Attributes:
        under_way: That of this process, until the group is created in the store; None if there is none.
    """

    def __init__(self, events: GroupEvents) -> None:
        self.under_way: Rendezvous | None = None
        self._events = events
        self._failed_on: Recorder | None = None

    def enter(self, rendezvous: Rendezvous, meeting: Meeting | None) -> None:
        """Begin a tape; a program that tries again after an error goes on with that of the try before."""
        if meeting is None:
            return
        recorder = self._events.current_recorder()
        if recorder is None or recorder is not self._failed_on or not recorder.is_of(*meeting[:2]):
            recorder = self._events.default_group_begins(*meeting[:2])
        if recorder is not None:
            ranks, address = tuple(range(meeting.world_size)), meeting.address
            rendezvous.enter(
                recorder, DEFAULT_GROUP, ranks, "", "default_pg", "", meeting.timeout_ms, address=address
            )
            self.under_way = rendezvous

    def failed(self, rendezvous: Rendezvous) -> None:
        """Forget a launch that has raised: the next one is the first again, as on the ranks without an error."""
        self.under_way = None
        if rendezvous.recorder is not None:
            self._failed_on = rendezvous.recorder
            rendezvous.recorder.forget_group(rendezvous.ranks)

    def take(self) -> Rendezvous | None:
        """Return the one that this thread has begun, which goes on now; None if there is none."""
        launched = self.under_way
        if launched is None or launched.thread != threading.get_native_id():
            return None
        self.under_way = None
        return launched if launched.recorder is self._events.current_recorder() else None


def follow_rendezvous(original: Callable[..., Any], launch: Launch) -> Callable[..., Any]:
    """Wrap torch's function that yields the store: from where that is looked for, the launch is under way."""

    def following(iterator: Iterator[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Any]:
        rendezvous = Rendezvous()
        try:
            with recorded(rendezvous):
                with guard.guarded("launch"):
                    if _is_of_default_group():
                        launch.enter(rendezvous, meeting_of(*args, **kwargs))
                found = next(iterator)
        except BaseException:
            with guard.guarded("launch"):
                launch.failed(rendezvous)
            raise
        yield found
        yield from iterator

    @functools.wraps(original)
    def rendezvous(*args: Any, **kwargs: Any) -> Any:
        return following(original(*args, **kwargs), args, kwargs)

    return rendezvous


def _is_of_default_group() -> bool:
    """Return whether torch's own ``init_process_group`` asks for the store, not a library for a world of its own."""
    frame: FrameType | None = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]  # as `inspect` would call it
    for _ in range(_MAX_DEPTH):
        if frame is None:
            return False
        if frame.f_code.co_name == DEFAULT_GROUP:
            return frame.f_globals is vars(c10d)
        frame = frame.f_back
    return False
