"""The operations of one rank. Channel and sequence match them with the calls of other ranks. Frozen data only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from otel_torchdist.model.kinds import RecordKind
from otel_torchdist.model.names import CallSiteName, GroupName, SignatureName
from otel_torchdist.model.operations import Operation

NO_TAG: Final = -1
"""Tag of sends and receives whose source does not record tags."""
ANY_RANK = -1
"""Source of a receive that accepts messages from any rank."""
MAX_RECENT: Final = 8
"""Upper bound on `Progress.recent`."""
MAX_THREADS: Final = 4
"""Upper bound on the threads of a `Progress`."""
MAX_ARRIVAL_FRAMES: Final = 16
"""Upper bound on the frames of an arrival."""
UNREAD: Final = "?"
"""Stands for a reduce op that was not read. It matches every reduce op."""


class Channel(NamedTuple):
    """A sequence of operations: a group's collectives, its creation, or the messages from one rank to another.

    Attributes:
        kind: `OPERATION` or `RENDEZVOUS`.
        group: The group's key; '' if unknown.
        source: Global rank of the sender; -1 for collectives.
        destination: Global rank of the receiver; -1 for collectives.
        tag: Tag of point-to-point operations; -1 if not recorded.
    """

    kind: RecordKind
    group: str
    source: int = ANY_RANK
    destination: int = -1
    tag: int = 0

    @property
    def is_point_to_point(self) -> bool:
        """Whether the channel connects two ranks rather than a group."""
        return self.destination >= 0


class OperationId(NamedTuple):
    """The `sequence`-th operation of a channel. The id is the same on all participating ranks."""

    channel: Channel
    sequence: int


class Arrival(NamedTuple):
    """The call that one rank made at one position of a channel.

    Attributes:
        sequence: The position.
        signature: The operation and its tensors; None if the dictionary does not contain the signature.
        root: Global rank of the root or peer; -1 if there is none.
        parts: Bytes exchanged with each member in an `all_to_all`; None in `Window`s, for other operations, or if
            unknown.
        caller: The outermost function of the calling thread, see `CallerName`; '' if unknown.
        frames: The user's frames that led to the call, innermost first, at most `MAX_ARRIVAL_FRAMES`; empty if unknown.
        label: As in `OperationView`.
        wants_one_size: Whether the backend requires tensors of equal size where torch does not.
    """

    sequence: int
    signature: SignatureName | None
    root: int
    parts: PartSizes | None = None
    caller: str = ""
    frames: tuple[CallSiteName, ...] = ()
    label: str = ""
    wants_one_size: bool = False


class LastArrival(NamedTuple):
    """The last arrival at an operation. Stragglers, latecomers and waits all use this definition.

    Attributes:
        nth: Index of the member that arrived last; on a tie, the first such index.
        late_ns: Time for which all others waited for this member alone; 0 if several arrived last.
    """

    nth: int
    late_ns: int


def last_of(arrived: Sequence[int]) -> LastArrival | None:
    """Return the last arrival, or None if there are fewer than two members."""
    if len(arrived) < 2:
        return None
    before_ns, last_ns = sorted(arrived)[-2:]
    return LastArrival(arrived.index(last_ns), last_ns - before_ns)


class Window(NamedTuple):
    """Calls of one rank at 64 consecutive positions of a channel.

    Attributes:
        number: Index of the block of 64 positions, from 0.
        digest: Equal for all ranks that made the same calls in this window.
    """

    number: int
    digest: int
    arrivals: tuple[Arrival, ...]


class TimedWindow(NamedTuple):
    """Arrival times of one rank at 64 consecutive positions of a channel.

    Attributes:
        number: Index of the block of 64 positions, from 0.
        times: Monotonic times, in order.
    """

    number: int
    times: tuple[int, ...]


class Progress(NamedTuple):
    """The progress of one rank in one channel.

    Attributes:
        entered: Highest sequence entered.
        completed: Highest sequence with a known end; 0 if there is none.
        failed: Highest sequence that raised; 0 if there is none.
        failure: Type of that exception.
        aligned: Whether sequences can be compared with the sequences of other ranks.
        losses: `RankView.losses` at the last update. If it has grown since, the rank may have entered more calls.
        recent: The newest calls, oldest first; at most `MAX_RECENT`.
        threads: Native ids of the threads that made the newest calls; at most `MAX_THREADS`.
        end_observed: Highest sequence whose end was observed; assumed ends count for `completed` only. It may trail the
            device by some rounds of the poller or watchdog.
        end_observed_ns: When such an end was last observed; 0 if unknown.
        callers: Outermost functions of the threads that made the newest calls, see `CallerName`; at most
            `MAX_THREADS`.
    """

    entered: int = 0
    completed: int = 0
    failed: int = 0
    failure: str = ""
    aligned: bool = True
    losses: int = 0
    recent: tuple[Arrival, ...] = ()
    threads: tuple[int, ...] = ()
    end_observed: int = 0
    end_observed_ns: int = 0
    callers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupView:
    """A process group.

    Attributes:
        key: Eight hex digits, the same on all members.
        name: The group as this rank sees it.
        members: Global ranks, for lookups.
        is_inferred: Whether `members` holds only the ranks that were seen to use the group. There may be more.
    """

    key: str
    name: GroupName
    members: frozenset[int]
    is_inferred: bool = False

    @property
    def label(self) -> str:
        """The name in a sentence: the description, torch's name, or the key."""
        return self.name.description or self.name.name or self.key

    @property
    def title(self) -> str:
        """The label, and the mesh dimensions that the label does not name."""
        return with_dimensions(self.label, self.name)


def with_dimensions(label: str, name: GroupName) -> str:
    """Append the mesh dimensions that a label does not name: the default group may be a mesh dimension."""
    unnamed = [dimension for dimension in name.dimensions if name.description != f"mesh_{dimension}"]
    return f"{label}, mesh {' and '.join(unnamed)}".removeprefix(", ") if unnamed else label


@dataclass(frozen=True, slots=True)
class OperationView:
    """An operation of one rank with its names resolved.

    Attributes:
        record: The record on the tape.
        name: `all_reduce`, `send`, …
        operation_id: Its id, the same on all members.
        group: Its group; None if the dictionary does not contain it.
        signature: Its signature; None if the dictionary does not contain it.
        call_site: Where it was called; None if neither user code nor a package is on the stack.
        label: The label of the calling library, such as `FSDP layers.3`; else the `record_comm` label, or ''.
        failure: Type of the exception that it raised, or ''.
        waiting_since_ns: Start of the rank's wait in this open operation; None if the record does not prove a wait.
        tolerance_ns: Wait to tolerate, because operations at this call site usually take long; see `Baselines`.
        path: The call path, innermost frame first; see `shown_path`.
        longest_ns: The longest duration so far at this call site; 0 if all were short.
        caller: The outermost function of the calling thread, see `CallerName`; '' if unknown.
    """

    record: Operation
    name: str
    operation_id: OperationId
    group: GroupView | None
    signature: SignatureName | None
    call_site: CallSiteName | None
    label: str
    failure: str
    waiting_since_ns: int | None
    tolerance_ns: int = 0
    path: tuple[str, ...] = ()
    longest_ns: int = 0
    caller: str = ""

    def involves(self, rank: int) -> bool:
        """Return whether a rank is known to send or receive this message, or to be a member of the group."""
        channel = self.operation_id.channel
        if channel.is_point_to_point:
            return rank in (channel.source, channel.destination)
        return self.group is not None and rank in self.group.members


class PartSizes(NamedTuple):
    """Bytes that one rank exchanges with each member of a group, itself included, in the order of the group.

    Attributes:
        sent: Bytes sent to each member.
        expected: Bytes expected from each member.
        unit: Bytes of a row, or of an element in an exchange of lists; 0 if unknown.
    """

    sent: tuple[int, ...]
    expected: tuple[int, ...]
    unit: int
