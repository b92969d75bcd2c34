"""What threads of a rank are in that may wait for operations without any record of it: in C++, or through a device."""

from __future__ import annotations

import enum
from typing import NamedTuple

from otel_torchdist.model.kinds import ActivityKind
from otel_torchdist.tape.reading.reader import TapeReader
from otel_torchdist.tape.status import TapeStatus


class Engagement(enum.Enum):
    """What a thread is in."""

    BACKWARD = "backward"
    OPTIMIZER_STEP = "optimizer step"
    FUTURE = "future"
    """`Future.wait`, as of what `Work.get_future` returns."""


class Occupation(NamedTuple):
    """What a thread is in.

    Attributes:
        engagement: What that is.
        thread: Native id of the thread.
        since_ns: Since when.
    """

    engagement: Engagement
    thread: int
    since_ns: int


def occupations_of(tape: TapeReader, status: TapeStatus) -> tuple[Occupation, ...]:
    """What the threads of a rank are in; `status` is that of its tape."""
    found = [
        Occupation(Engagement.OPTIMIZER_STEP, one.thread, one.entered_ns)
        for one in tape.open_activities()
        if one.kind is ActivityKind.OPTIMIZER_STEP
    ]
    if status.backward_since_ns:
        found.append(Occupation(Engagement.BACKWARD, status.backward_thread, status.backward_since_ns))
    if status.future_since_ns:
        found.append(Occupation(Engagement.FUTURE, status.future_thread, status.future_since_ns))
    return tuple(found)
