"""The communication of one rank, from a PyTorch profiler trace or execution trace."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple


class TraceKind(Enum):
    """The format of a trace."""

    PROFILER = "trace of PyTorch's profiler"
    """Written by `torch.profiler`, in Kineto's format."""
    EXECUTION = "execution trace"
    """Written by `ExecutionTraceObserver`, or converted from it by Chakra. It has no times of calls."""


class ProfiledGroup(NamedTuple):
    """A process group in one rank's trace.

    Attributes:
        name: torch's name; '' in traces of 2023, which do not name groups.
        description: Its purpose, or ''.
        backend: `nccl`, `cpu:gloo,cuda:nccl`, … or ''.
        size: Number of its ranks; 0 if unknown.
        ranks: Global ranks of the members, ascending; empty if unknown.
    """

    name: str
    description: str = ""
    backend: str = ""
    size: int = 0
    ranks: tuple[int, ...] = ()


NO_RANK: Final = -1


class CallArguments(NamedTuple):
    """The arguments shared by calls of one kind.

    Attributes:
        operation: `all_reduce`, `send`, …
        group: Name of the group; None if not recorded (gloo).
        group_size: Ranks of the group; 0 if unknown.
        reduce_op: `avg` if a kernel's name proves it, otherwise ''.
        dtype: `float32`, …; '' if not recorded.
        elements: Elements of this rank's input tensors; None if not recorded.
        received: Elements of the tensors that it receives; None if not recorded.
        splits: Rows that an `all_to_all` sends to each member; empty if it is even, or if the list is truncated.
        is_uneven: Whether an `all_to_all` sends parts of different sizes, or receives a different total than it sends.
        shapes: Shapes of the input tensors; empty unless the profiler recorded shapes.
        peer: Rank of the peer or root within the group; -1 for none.
        global_peer: Global rank of the peer; -1 for none, or if only `peer` is known.
        on_device: Whether the call runs on a device.
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
    """One call. Times are nanoseconds since the epoch by the host's clock; in an execution trace, node ids.

    Attributes:
        arguments: Operation, group and tensors.
        entered_ns: Entry of the call.
        returned_ns: Return of the call.
        started_ns: Start on the device, or on gloo's thread; None if not recorded.
        ended_ns: End on the device, or on gloo's thread; None if not recorded.
        step: Number of the step; 0 for none.
        thread: Id of the calling thread.
        sequence: Position in the group, the same on all members; 0 if not recorded.
        in_backward: Whether autograd made the call in a backward pass; None if unknown.
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
    """A step marked by the profiler: `ProfilerStep#3`."""

    number: int
    begun_ns: int
    ended_ns: int


@dataclass(frozen=True, slots=True)
class RankProfile:
    """One rank's trace.

    Attributes:
        kind: The format.
        rank: Global rank.
        path: Path that it was read from.
        world_size: Ranks of the job; 0 if not stated.
        host: Host name, or ''.
        process: Id of the process; 0 if unknown.
        newest_ns: The newest time in the trace, to order traces of one rank.
        groups: The groups that the trace describes, with or without calls.
        steps: Its steps, ascending.
        calls: Its calls, in order of entry.
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
    """A trace without its invalid parts.

    Attributes:
        profile: The valid parts.
        bad_parts: Number of parts left out as invalid.
        first_fault: The fault of the first invalid part; '' without invalid parts.
    """

    profile: RankProfile
    bad_parts: int = 0
    first_fault: str = ""
