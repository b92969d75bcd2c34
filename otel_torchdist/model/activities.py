"""Activities: intervals of one thread that are no operations, such as the step of an optimizer."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from otel_torchdist.model.kinds import ActivityKind, How
from otel_torchdist.model.operations import Operation
from otel_torchdist.model.remote_calls import RemoteCall


class Activity(msgspec.Struct, frozen=True, gc=False):
    """An interval of one thread that is no operation.

    Attributes:
        number: The record's number on this tape.
        kind: What the thread is busy with.
        entered_ns: When it began.
        step: The rank's step at that time.
        detail: Name id of a text that tells activities of a kind apart (0 when there is none).
        thread: Native id of the thread.
        completed_ns: When it ended; None while it is open.
        how: How the end is known; of an `ABANDONED` one, which was left with an exception, only that it was no later.
        failure: Name id of the exception that ended it (0 when that is not known).
        parent: Number of the activity of the same thread within which it began; 0 if there is none.
        message_bytes: Bytes that it has written or read; while it is open, those that it is going to, as far as known.
        files: Files that it has written or read.
        storage: Name id of the storage (0 when there is none).
        explanation: Name id of that exception's message.
        call: What else is known of a remote procedure call; None for other kinds.
    """

    number: int
    kind: ActivityKind
    entered_ns: int
    step: int
    detail: int
    thread: int
    completed_ns: int | None = None
    how: How | None = None
    failure: int = 0
    parent: int = 0
    message_bytes: int = 0
    files: int = 0
    storage: int = 0
    explanation: int = 0
    call: RemoteCall | None = None

    @property
    def is_open(self) -> bool:
        """Whether the activity has not ended yet."""
        return self.completed_ns is None


Interval: TypeAlias = Operation | Activity
"""What a tape records from its beginning to its end; the reader follows both alike."""
