"""Channels: sequence counters and names of a group's operations, one for each backend.

Progress of ranks is compared by sequence numbers, so operations must be counted in the order in which the backend runs
them. A group with a backend for each device type (`cpu:gloo,cuda:nccl`) has two independent orders: while one thread
trains on CUDA, another gathers a checkpoint's plan on the CPU, at a different moment on each rank.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import MutableSequence
from typing import TYPE_CHECKING, Final

from torch.distributed import ProcessGroup

from otel_torchdist.capture.core.calls.backends import Backends, at_timeout_of, has_several_backends, timeout_of
from otel_torchdist.model.names import MAX_DIMENSIONS, SPARE_OF_GROUPS, GroupName

if TYPE_CHECKING:
    from otel_torchdist.capture.core.recorder import Recorder

MAX_TIMEOUTS: Final = 16
"""Maximum number of recorded changes of a group's timeout. Each change may add a name that lists all ranks."""


class GroupChannel:
    """The operations of one group that run on one backend.

    Attributes:
        name_id: The group's id in the name dictionary.
        rank: This rank's global rank.
        counter: A sequence of one number: the collectives issued so far. The native kernel shares it.
    """

    __slots__ = ("_counters", "_number", "counter", "name_id", "rank")

    def __init__(self, name_id: int, rank: int, recorder: Recorder) -> None:
        """Initialize a channel without operations."""
        self.name_id = name_id
        self.rank = rank
        self.counter = recorder.new_counter()
        self._counters = recorder.message_counters
        self._number = self._counters.new_channel()

    @property
    def sequence(self) -> int:
        """Number of collectives issued so far."""
        return self.counter[0]

    def message_counter(self, is_send: bool, peer: int, tag: int) -> tuple[MutableSequence[int], bool]:
        """Return the counter of messages with this peer, direction and tag, and whether the peer counts alike.

        See `MessageCounters`.
        """
        return self._counters.find(self._number, is_send and peer != self.rank, peer, tag)


class GroupChannels(GroupChannel):
    """The channels of a process group: the group itself, and one for each device type if it has several backends.

    Attributes:
        reference: Weak reference to the group.
        name: Its entry in the name dictionary.
        group_rank: This rank's rank in the group.
        backend_on: Returns the name of the backend for a device type; '' if the group has none.
    """

    __slots__ = (
        "__weakref__",
        "_channels",
        "_timeouts_left",
        "backend_on",
        "group_rank",
        "name",
        "recorder",
        "reference",
    )

    def __init__(self, recorder: Recorder, group: ProcessGroup, name: GroupName, group_rank: int) -> None:
        rank = name.ranks[group_rank] if 0 <= group_rank < len(name.ranks) else group_rank
        super().__init__(recorder.tape.names.intern(name, SPARE_OF_GROUPS), rank, recorder)
        self.group_rank = group_rank
        self.recorder = recorder
        self.name = name
        self._channels: dict[str, GroupChannel] | None = {} if has_several_backends(group) else None
        self._timeouts_left = MAX_TIMEOUTS
        self.reference = weakref.ref(group)
        self.backend_on = Backends(self.reference)

    @property
    def has_several_channels(self) -> bool:
        """Whether operations on different device types are counted separately."""
        return self._channels is not None

    @property
    def issued(self) -> int:
        """Number of collectives issued so far, on all channels."""
        return self.sequence + sum(channel.sequence for channel in tuple((self._channels or {}).values()))

    def add_dimension(self, name: str) -> None:
        """Record the name of the device mesh dimension that this group belongs to."""
        present = self.name.dimensions
        if name in present or len(present) == MAX_DIMENSIONS:
            return
        self.name = dataclasses.replace(self.name, dimensions=(*present, name))
        names = self.recorder.tape.names
        names.replace(self.name_id, self.name, SPARE_OF_GROUPS)
        for device, channel in (self._channels or {}).items():
            names.replace(channel.name_id, self._name_on(device), SPARE_OF_GROUPS)

    def global_rank(self, group_rank: int) -> int:
        """Return the global rank of a member, or -1 if there is no such member."""
        ranks = self.name.ranks
        return ranks[group_rank] if 0 <= group_rank < len(ranks) else -1

    def channel_of(self, device: str) -> GroupChannel:
        """Return the channel that counts operations on a device type."""
        if self._channels is None:
            return self
        channel = self._channels.get(device)
        if channel is None:
            channel = self._channels[device] = GroupChannel(self._name_id_on(device), self.rank, self.recorder)
        return channel

    def _name_id_on(self, device: str) -> int:
        return self.recorder.tape.names.intern(self._name_on(device), SPARE_OF_GROUPS)

    def _name_on(self, device: str) -> GroupName:
        """Return the name for operations on a device type with a separate backend."""
        group, backend = self.reference(), self.backend_on(device)
        return dataclasses.replace(
            self.name,
            backend=backend,
            device=device,
            timeout_ms=timeout_of(group, device) if group is not None and self._timeouts_left > 1 else 0,
            at_timeout=at_timeout_of(backend),
        )

    def renew_names(self) -> bool:
        """Name later operations with the new timeout. Return whether any name has changed."""
        group = self.reference()
        if group is None or not self._timeouts_left:
            return False
        before = [self.name_id, *(channel.name_id for channel in (self._channels or {}).values())]
        timeout_ms = timeout_of(group) if self._timeouts_left > 1 else 0
        self.name = dataclasses.replace(self.name, timeout_ms=timeout_ms)
        self.name_id = self.recorder.tape.names.intern(self.name, SPARE_OF_GROUPS)
        for device, channel in tuple((self._channels or {}).items()):
            channel.name_id = self._name_id_on(device)
        if [self.name_id, *(channel.name_id for channel in (self._channels or {}).values())] == before:
            return False
        self._timeouts_left -= 1
        return True

    def name_of_variant(self, channel: GroupChannel, device: str, has_call_timeout: bool, is_comparable: bool) -> int:
        """Return the name id for operations with another timeout or with incomparable sequence numbers.

        Args:
            channel: The channel.
            device: Device type of the operations.
            has_call_timeout: Whether the call passed a timeout, which replaces the group's and is not recorded.
            is_comparable: Whether the sequence numbers can be compared with other ranks'.
        """
        name = self.name if channel is self else self._name_on(device)
        timeout_ms = 0 if has_call_timeout else name.timeout_ms
        name = dataclasses.replace(name, timeout_ms=timeout_ms, aligned=name.aligned and is_comparable)
        return self.recorder.tape.names.intern(name, SPARE_OF_GROUPS)
