"""The stacks of a rank, as it has written them down on request."""

from __future__ import annotations

from dataclasses import dataclass, replace

from otel_torchdist.model.names import CallSiteName


@dataclass(frozen=True, slots=True)
class ThreadStack:
    """The stack of one thread.

    Attributes:
        thread: Native thread id, the same as `Operation.thread`.
        name: The thread's name.
        frames: Innermost frame first.
        is_locked: Whether it waits for a lock, without a limit, as the kernel shows it; None if that is not known. No
            frame shows that where the innermost line calls C.
    """

    thread: int
    name: str
    frames: tuple[CallSiteName, ...]
    is_locked: bool | None = None


@dataclass(frozen=True, slots=True)
class Stacks:
    """The newest request for a rank's stacks.

    Attributes:
        asked_ns: When the rank was asked.
        threads: Its answer; None while there is none.
        by_signal: Whether a signal took the stack while the GIL was held; then it is that of one thread.
        earlier: Its answer to the request before, as long as there is none to this one.
        earlier_ns: When it was asked for that.
    """

    asked_ns: int
    threads: tuple[ThreadStack, ...] | None
    by_signal: bool = False
    earlier: tuple[ThreadStack, ...] = ()
    earlier_ns: int = 0

    @property
    def newest(self) -> tuple[tuple[ThreadStack, ...], int]:
        """Its newest answer, and when it was asked for that; empty if there is none."""
        return (self.earlier, self.earlier_ns) if self.threads is None else (self.threads, self.asked_ns)

    def moved(self, offset_ns: int) -> Stacks:
        """The same on a clock that is ahead by `offset_ns`."""
        earlier_ns = self.earlier_ns + offset_ns if self.earlier else 0
        return replace(self, asked_ns=self.asked_ns + offset_ns, earlier_ns=earlier_ns)
