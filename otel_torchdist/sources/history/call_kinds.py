"""Kinds of calls: the properties that thousands of calls share, stored once per kind."""

from __future__ import annotations

import dataclasses
from typing import Final, NamedTuple, TypeVar, cast

from otel_torchdist.model.calls import Channel, GroupView, OperationView
from otel_torchdist.model.kinds import Flag, Phase, RecordKind
from otel_torchdist.model.names import CallSiteName, SignatureName
from otel_torchdist.model.operations import EXACT, Operation

DEVICE_THREAD: Final = -1
"""Thread id of all calls on a device. They run in stream order, regardless of the threads that enqueued them."""
_COALESCED: Final = int(Flag.COALESCED)
_ON_DEVICE: Final = int(Flag.ON_DEVICE)
ARRIVED: Final = 1
"""Bit of `RankCalls.known_times`: `started` is the rank's arrival at the call, as its peers observe it."""
ARRIVED_ALONE: Final = 2
"""Bit of `RankCalls.known_times`: as `ARRIVED`, and the call was not coalesced with other calls."""
TIMED: Final = 4
"""Bit of `RankCalls.known_times`: the call has ended, and its times are precise enough for a duration."""
STARTED: Final = 8
"""Bit of `RankCalls.known_times`: the device started the call at `started`."""
RETURNED: Final = 16
"""Bit of `RankCalls.known_times`: the call returned without waiting for the end of the operation."""
ENDED: Final = 32
"""Bit of `RankCalls.known_times`: the operation has ended, successfully or not."""

_Name = TypeVar("_Name", CallSiteName | None, SignatureName | None)


class CallKind(NamedTuple):
    """The properties shared by calls of one rank.

    Attributes:
        record_kind: `OPERATION` or `RENDEZVOUS`.
        operation: `all_reduce`, `send`, …
        group: The process group; None if unknown.
        signature: The tensors and the reduce op; None if unknown.
        site: The call site; None if unknown.
        label: See `OperationView.label`.
        failure: Type of the exception that the calls raised, or ''.
        message_bytes: Bytes that the rank contributes.
        peer: Global rank of the peer or root; -1 if there is none.
        flags: Bits of `Flag`.
        phase: Whether a backward pass made the calls.
        thread: Native id of the calling thread.
    """

    record_kind: RecordKind
    operation: str
    group: GroupView | None
    signature: SignatureName | None
    site: CallSiteName | None
    label: str
    failure: str
    message_bytes: int
    peer: int
    flags: int
    phase: Phase
    thread: int

    @property
    def group_key(self) -> str:
        """The group's key; '' if the group is unknown."""
        return self.group.key if self.group is not None else ""

    @property
    def members(self) -> int:
        """Number of ranks of the group; 0 if the group is unknown."""
        return len(self.group.members) if self.group is not None else 0

    @property
    def is_on_device(self) -> bool:
        """Whether the calls run on a device, in stream order."""
        return bool(self.flags & _ON_DEVICE)

    @property
    def ordering_thread(self) -> int:
        """Native id of the thread that runs the calls in order; `DEVICE_THREAD` for calls on a device."""
        return DEVICE_THREAD if self.is_on_device else self.thread


class RankChannel(NamedTuple):
    """A channel as one rank uses it.

    Attributes:
        channel: The channel.
        is_aligned: Whether the rank's positions are comparable between ranks.
    """

    channel: Channel
    is_aligned: bool


class GroupPool:
    """Interned process groups.

    Every rank's source has its own copy of a group. The members of a group of 4,096 ranks take 300 KB.
    """

    def __init__(self) -> None:
        """Create an empty pool."""
        self._pooled: dict[str, GroupView] = {}

    def shared(self, view: GroupView) -> GroupView:
        """Return the pooled group if it is equal. If only its members are, return the group with those members."""
        pooled = self._pooled.setdefault(view.key, view)
        if pooled is view or pooled.is_inferred != view.is_inferred or len(pooled.members) != len(view.members):
            return view
        if pooled.name == view.name:
            return pooled
        return dataclasses.replace(view, members=pooled.members) if pooled.members == view.members else view


class SharedFields(NamedTuple):
    """Column values that calls share if they have the same names and the same `How`; see `RankCalls`."""

    kind: int
    channel: int
    how: int
    known_times: int


class Kinds:
    """Index of the kinds and channels of one rank's calls.

    Attributes:
        kinds: The kinds, by index.
        channels: The index of each channel, in ascending order.
        groups: The groups, by key.
    """

    def __init__(self, pool: GroupPool) -> None:
        """Create an empty index.

        Args:
            pool: Groups shared with other ranks.
        """
        self.kinds: list[CallKind] = []
        self.channels: dict[RankChannel, int] = {}
        self.groups: dict[str, GroupView] = {}
        self._pool = pool
        self._shared: dict[int, GroupView] = {}
        self._names: dict[object, object] = {}
        self._index: dict[tuple[object, ...], int] = {}

    def fields_of(self, view: OperationView) -> SharedFields:
        """Return the column values of a call. Its kind and channel are added to the index if they are new."""
        record, group = view.record, None if view.group is None else self._group(view.group)
        flags = int(record.flags)
        kind = CallKind(
            record_kind=record.kind,
            operation=view.name,
            group=group,
            signature=self._name(view.signature),
            site=self._name(view.call_site),
            label=view.label,
            failure=view.failure,
            message_bytes=record.message_bytes,
            peer=record.peer,
            flags=flags,
            phase=record.phase,
            thread=record.thread,
        )
        identity = (*map(id, (kind.group, kind.signature, kind.site)), kind.operation, *kind[5:], kind.record_kind)
        index = self._index.setdefault(identity, len(self.kinds))
        if index == len(self.kinds):
            self.kinds.append(kind)
        is_aligned = group is not None and group.name.aligned
        channel = RankChannel(view.operation_id.channel, is_aligned)
        known_times = _known_times(record, flags)
        return SharedFields(index, self.channels.setdefault(channel, len(self.channels)), record.how or 0, known_times)

    def _group(self, view: GroupView) -> GroupView:
        group = self._shared.get(id(view))
        if group is None:
            group = self._shared[id(view)] = self._pool.shared(view)
            self.groups.setdefault(group.key, group)
        return group

    def _name(self, name: _Name) -> _Name:
        return cast(_Name, self._names.setdefault(name, name))


def _known_times(record: Operation, flags: int) -> int:
    is_started = record.started_ns is not None
    is_alone = not flags & _COALESCED
    has_arrived = (is_started and record.started_how in EXACT) if flags & _ON_DEVICE else is_alone
    return (
        ARRIVED * has_arrived
        | ARRIVED_ALONE * (has_arrived and is_alone)
        | TIMED * (record.completed_ns is not None and record.is_timed)
        | ENDED * (record.completed_ns is not None)
        | STARTED * is_started
        | RETURNED * (record.returned_ns is not None)
    )
