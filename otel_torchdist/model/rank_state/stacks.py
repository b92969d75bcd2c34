"""The stacks that a rank writes on request."""

from __future__ import annotations

from dataclasses import dataclass, replace

from otel_torchdist.model.names import CallSiteName


@dataclass(frozen=True, slots=True)
class ThreadStack:
    """The stack of one thread.

    Attributes:
        thread: Native thread id, the same as `Operation.thread`.
        frames: Innermost frame first.
        is_locked: Whether the kernel shows the thread waiting for a lock without a timeout; None if unknown. Frames do
            not show it if the innermost line calls C.
    """

    thread: int
    name: str
    frames: tuple[CallSiteName, ...]
    is_locked: bool | None = None


@dataclass(frozen=True, slots=True)
class Stacks:
    """The newest request for a rank's stacks, and its answer.

    Attributes:
        asked_ns: When the stacks were requested.
        threads: The answer; None while there is none.
        by_signal: Whether a signal handler took the stack while the GIL was held. It then covers one thread.
        earlier: The answer to the previous request, kept until this one is answered.
        earlier_ns: When the previous request was made.
    """

    asked_ns: int
    threads: tuple[ThreadStack, ...] | None
    by_signal: bool = False
    earlier: tuple[ThreadStack, ...] = ()
    earlier_ns: int = 0

    @property
    def newest(self) -> tuple[tuple[ThreadStack, ...], int]:
        """The newest answer and the time of its request; empty if there is none."""
        return (self.earlier, self.earlier_ns) if self.threads is None else (self.threads, self.asked_ns)

    def moved(self, offset_ns: int) -> Stacks:
        """Return a copy on a clock that is ahead by `offset_ns`."""
        earlier_ns = self.earlier_ns + offset_ns if self.earlier else 0
        return replace(self, asked_ns=self.asked_ns + offset_ns, earlier_ns=earlier_ns)
