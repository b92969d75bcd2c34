"""Operations that a device carries out: the host sees them enqueued, not ended."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Protocol

from otel_torchdist.tape.layout import How

if TYPE_CHECKING:
    from otel_torchdist.capture.completion import Call


class EndTracker(Protocol):
    """Finds out how issued operations end: `completion.Works` on the CPU, one for each kind of device."""

    def follow(self, call: Call, result: Any, args: tuple[Any, ...]) -> None:
        """Take up an operation that the backend has accepted.

        Args:
            call: The operation.
            result: What the dispatcher returned.
            args: What it was given.
        """
        ...


class Untracked:
    """Says of every operation that it was enqueued and that its end is not known.

    Asking the device costs CUDA calls on the training thread; until that is done properly nothing is claimed.
    """

    def follow(self, call: Call, result: Any, args: tuple[Any, ...]) -> None:
        """Close the record with an end that says so."""
        tape = call.group.recorder.tape
        tape.complete(call.number, call.entered_ns, time.monotonic_ns(), How.UNTRACKED)
