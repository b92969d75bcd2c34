"""What a trace of PyTorch's profiler shows of one rank's communication."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple


class TraceKind(Enum):
    """What has written a trace."""

    PROFILER = "trace of PyTorch's profiler"
    """`torch.profiler`, whose format is Kineto's."""
    EXECUTION = "execution trace"
    """`ExecutionTraceObserver`, or Chakra, whose traces are made from its. They hold no times of calls."""


class ProfiledGroup(NamedTuple):
    """A process group as one rank's trace describes it.

    Attributes:
        name: torch's name; '' in traces of 2023, which do not name groups.
        description: What it is for, or ''.
        backend: `nccl`, `cpu:gloo,cuda:nccl`, … or ''.
        size: Ranks that it has; 0 if that is not known.
        ranks: Global ranks of the members, ascending; empty if they are not known.
    """

    name: str
    description: str = ""
    backend: str = ""
    size: int = 0
    ranks: tuple[int, ...] = ()


NO_RANK: Final = -1


class CallArguments(NamedTuple):
    """What calls of one kind have in common, so that it is stored once.

    Attributes:
        operation: `all_reduce`, `send`, …
        group: Name of the group; None if the trace does not show it (gloo).
        group_size: Ranks of the group; 0 if that is not known.
        reduce_op: `avg` if a kernel's name proves it; else ''.
        dtype: `float32`, …; '' if it is not recorded.
        elements: Elements of this rank's own tensors; None if they are not recorded.
        received: Elements of the tensors that it receives; None if they are not recorded.
        splits: Rows that an `all_to_all` sends to each member; empty if it is even, or if the list is cut.
        is_uneven: Whether an `all_to_all` sends members parts of different size, or does not receive as much as it
            sends.
        shapes: Their shapes; empty unless the profiler recorded shapes.
        peer: Rank within the group that sends, receives or is the root; -1 for none.
        global_peer: The same as a global rank; -1 if only the other is known.
        on_device: Whether it runs on a device.
    """

    operation: str
    group: str | None
    group_size: int = 0
    reduce_op: str = ""
    dtype: str = ""
    elements: int | None = None
    received: int | None = None
    splits: tuple[int, ...] = ()
    is_uneven: bool = False
    shapes: tuple[tuple[int, ...], ...] = ()
    peer: int = NO_RANK
    global_peer: int = NO_RANK
    on_device: bool = True


class ProfiledCall(NamedTuple):
    """One call. Times are nanoseconds since the epoch by the clock of the host; in an execution trace, positions.

    Attributes:
        arguments: What was called.
        entered_ns: When the thread entered the call.
        returned_ns: When it returned.
        started_ns: When it began to run, on the device or on a thread of gloo; None if that is not recorded.
        ended_ns: When it ended there.
        step: Number of the step; 0 if there is none.
        thread: The calling thread.
        sequence: Position in the group, the same on all members; 0 if it is not recorded.
        in_backward: Whether a backward pass of autograd made the call; None if that is not known.
    """

    arguments: CallArguments
    entered_ns: int
    returned_ns: int
    started_ns: int | None = None
    ended_ns: int | None = None
    step: int = 0
    thread: int = 0
    sequence: int = 0
    in_backward: bool | None = None


class ProfiledStep(NamedTuple):
    """A step that the profiler has marked: `ProfilerStep#3`."""

    number: int
    begun_ns: int
    ended_ns: int


@dataclass(frozen=True, slots=True)
class RankProfile:
    """One rank's trace.

    Attributes:
        kind: What has written it.
        rank: Global rank.
        path: Where it was read.
        world_size: Ranks of the job; 0 if it does not say.
        host: Host name, or ''.
        process: Id of the process; 0 if it is not known.
        newest_ns: The newest time in it, which tells recordings apart.
        groups: The groups that it describes, used or not.
        steps: Its steps, ascending.
        calls: Its calls, in the order in which they were entered.
    """

    kind: TraceKind
    rank: int
    path: str
    world_size: int
    host: str
    process: int
    newest_ns: int
    groups: tuple[ProfiledGroup, ...]
    steps: tuple[ProfiledStep, ...]
    calls: tuple[ProfiledCall, ...]


@dataclass(frozen=True, slots=True)
class DecodedTrace:
    """A trace.

    Attributes:
        profile: What could be read.
        bad: How many of its parts were left out.
        first_fault: What was wrong with the first of them; '' if there are none.
    """

    profile: RankProfile
    bad: int = 0
    first_fault: str = ""
