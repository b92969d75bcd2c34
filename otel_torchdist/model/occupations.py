"""What the threads of a rank are busy with besides operations, as records and stacks show it."""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from otel_torchdist.model.names import CallSiteName


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


@dataclass(frozen=True, slots=True)
class SharedGroup:
    """A group that two threads use at the same time.

    Attributes:
        group: Its key.
        operations: The two operations that met last.
        call_sites: Where they were called.
        step: The rank's step.
        callers: What the two threads run, see `CallerName`; '' where that is not known.
        times: How often it was seen.
    """

    group: str
    operations: tuple[str, str]
    call_sites: tuple[CallSiteName | None, CallSiteName | None]
    step: int
    callers: tuple[str, str] = ("", "")
    times: int = 1


@dataclass(frozen=True, slots=True)
class ChildWait:
    """A child process that a rank waits for.

    Attributes:
        pid: Its process id.
        name: What it is: `DataLoader worker 1`, `child process`.
        doing: What it is doing: `in read() of /data/shard-7 (nfs4 at /data)`.
        since_ns: Since when.
        others: Process ids of other children that do the same.
        is_locked: Whether they wait for locks of their own, which nothing can release any more.
        is_forked: Whether they were forked from the rank, and so inherited its locks.
        holder: Where the only other thread of the rank that runs the user's code is, which may have held the lock; None
            if there is none, or there are several.
    """

    pid: int
    name: str
    doing: str
    since_ns: int
    others: tuple[int, ...] = ()
    is_locked: bool = False
    is_forked: bool = False
    holder: CallSiteName | None = None


@dataclass(frozen=True, slots=True)
class CallPace:
    """How often a rank calls operations, and whether it works meanwhile.

    Attributes:
        called_ns: When it last entered or left an operation, ended a step or began or ended an activity; 0 for never.
        longest_gap_ns: The longest time between two calls so far, outside of operations; 0 if all were short.
        busy: The share of a core that it and the processes that it has started used lately, outside of operations;
            None if that is not known.
    """

    called_ns: int = 0
    longest_gap_ns: int = 0
    busy: float | None = None

    def moved(self, offset_ns: int) -> CallPace:
        """The same on a clock that is ahead by this much."""
        return replace(self, called_ns=self.called_ns + offset_ns) if self.called_ns else self


NO_PACE: Final = CallPace()
