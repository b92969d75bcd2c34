"""Operations of one rank, by channel and sequence: by these the calls of all ranks are matched. Frozen data only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from otel_torchdist.model.kinds import RecordKind
from otel_torchdist.model.names import CallSiteName, GroupName, SignatureName
from otel_torchdist.model.operations import Operation

ANY_RANK = -1
"""Source of a receive that accepts from any rank."""
MAX_RECENT: Final = 8
MAX_THREADS: Final = 4
MAX_CALLERS: Final = 16
"""Frames of an arrival."""
UNREAD: Final = "?"
"""Reduce op of a call for which it was not read: it matches every other."""


class Channel(NamedTuple):
    """A sequence of operations: a group's collectives, its creation, or what one rank sends another.

    Attributes:
        kind: `OPERATION` or `RENDEZVOUS`.
        group: The group's key; '' when the group is not known.
        source: Global rank that sends; -1 for collectives.
        destination: Global rank that receives; -1 for collectives.
        tag: Tag of point-to-point operations; -1 if it is not recorded.
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
    """The `sequence`-th operation of a channel: the same id on all ranks that take part."""

    channel: Channel
    sequence: int


class Arrival(NamedTuple):
    """What one rank entered at one position of a channel.

    Attributes:
        sequence: The position.
        signature: What it called, with which arguments; None if the dictionary does not contain it.
        root: Global rank of the root, or of the peer; -1 if there is none.
        parts: What it exchanges with each member; None for other operations, in `Window`s, or if unknown.
        caller: What the thread runs that has called it, see `CallerName`; '' if that is not known.
        frames: The user's frames that led there, innermost first, at most `MAX_CALLERS`; empty if they are not known.
        label: What the call is for; see `OperationView`.
        wants_one_size: Whether its backend takes tensors of one size only, where torch would allow others.
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
    """The last arrival at a meeting of ranks: one definition for stragglers, latecomers and waits.

    Attributes:
        nth: Index of the member that came last; of several at the same time, the first.
        late_ns: Time for which all others waited for it alone; 0 if several came last.
    """

    nth: int
    late_ns: int


def last_of(arrived: Sequence[int]) -> LastArrival | None:
    """Return who came last; None if there is no other member."""
    if len(arrived) < 2:
        return None
    before_ns, last_ns = sorted(arrived)[-2:]
    return LastArrival(arrived.index(last_ns), last_ns - before_ns)


class Window(NamedTuple):
    """Calls of one rank at consecutive positions of a channel.

    Attributes:
        number: Which block of 64 positions, from 0.
        digest: Equal for all ranks that made the same calls there.
        arrivals: The calls.
    """

    number: int
    digest: int
    arrivals: tuple[Arrival, ...]


class TimedWindow(NamedTuple):
    """When one rank arrived at the calls at consecutive positions of a channel.

    Attributes:
        number: Which block of 64 positions, from 0.
        times: Monotonic times, in order.
    """

    number: int
    times: tuple[int, ...]


class Progress(NamedTuple):
    """How far one rank has advanced in one channel.

    Attributes:
        entered: Highest sequence entered.
        completed: Highest sequence whose end is known, 0 when there is none.
        failed: Highest sequence that raised, 0 when there is none.
        failure: Type of that exception.
        aligned: Whether the sequence can be compared with that of other ranks.
        losses: `RankView.losses` when this was last updated: if it has grown since, more may have been entered.
        recent: What it entered last, oldest first; at most `MAX_RECENT`.
        threads: Native ids of the threads that entered it last; at most `MAX_THREADS`.
        seen_out: Highest sequence that it was seen to come out of. Unlike `completed` it never counts an end that is
            only assumed. It may trail the device by some rounds of the poller or watchdog that looks.
        seen_out_ns: When it was last seen to come out of one; 0 if that is not known.
        callers: What the threads run that entered it last, see `CallerName`; at most `MAX_THREADS`.
    """

    entered: int = 0
    completed: int = 0
    failed: int = 0
    failure: str = ""
    aligned: bool = True
    losses: int = 0
    recent: tuple[Arrival, ...] = ()
    threads: tuple[int, ...] = ()
    seen_out: int = 0
    seen_out_ns: int = 0
    callers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupView:
    """A process group.

    Attributes:
        key: Eight hex digits, the same on all members.
        name: The group as the member sees it.
        members: Its ranks, for lookups.
        is_inferred: Whether the members are those that were seen to use it, and there may be more.
    """

    key: str
    name: GroupName
    members: frozenset[int]
    is_inferred: bool = False

    @property
    def label(self) -> str:
        """The group's name in a sentence."""
        return self.name.description or self.name.name or self.key

    @property
    def title(self) -> str:
        """The label, and the dimensions of device meshes that it does not name."""
        return with_dimensions(self.label, self.name)


def with_dimensions(label: str, name: GroupName) -> str:
    """What a group is called, and the dimensions of meshes that this does not say: the default group may be one."""
    others = [one for one in name.dimensions if name.description != f"mesh_{one}"]
    return f"{label}, mesh {' and '.join(others)}".removeprefix(", ") if others else label


@dataclass(frozen=True, slots=True)
class OperationView:
    """An operation of one rank with its names resolved.

    Attributes:
        record: The record on the tape.
        name: `all_reduce`, `send`, …
        operation_id: Its id, the same on all members.
        group: Its group; None if the dictionary does not contain it.
        signature: Its signature; None if the dictionary does not contain it.
        call_site: Where it was called; None when no frame of the user's code led to it, nor one of a package.
        label: What it is for, as the library that calls it knows: `FSDP layers.3`; else the `record_comm` label, or ''.
        failure: Type of the exception that it raised, or ''.
        waiting_since_ns: Since when it shows that its rank waits; None if being open is no evidence of that.
        tolerance_ns: How long it may take because its call site usually takes long; see `Baselines`.
        path: What has led to the call site, innermost frame first; see `shown_path`.
        longest_ns: The longest that an operation of its call site has taken before; 0 if all were short.
        caller: What the thread runs that has called it, see `CallerName`; '' if that is not known.
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
        """Return whether a rank is known to be one end of this message, or a member of the group."""
        channel = self.operation_id.channel
        if channel.is_point_to_point:
            return rank in (channel.source, channel.destination)
        return self.group is not None and rank in self.group.members


class PartSizes(NamedTuple):
    """How many bytes one rank exchanges with each member of a group, itself included, in the order of the group.

    Attributes:
        sent: What it sends to each.
        expected: What it expects from each.
        unit: Bytes of a row, or of an element in an exchange of lists; 0 if unknown.
    """

    sent: tuple[int, ...]
    expected: tuple[int, ...]
    unit: int
