"""Where a group's operations are counted.

Ranks compare how far they have come by these numbers, so they have to be counted as the backend orders them. A group
with a backend for each device type (`cpu:gloo,cuda:nccl`) has two orders that know nothing of each other: while one
thread trains on CUDA, another gathers a checkpoint's plan on the CPU, at another moment on each rank.

Process groups: their members, their sequence, and how they are recognised from one call to the next.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections import Counter
from typing import TYPE_CHECKING

import torch
from torch.distributed import ProcessGroup

from otel_torchdist import guard as _guard
from otel_torchdist.capture.c10d.plans import Plans
from otel_torchdist.capture.c10d.signatures import Signatures
from otel_torchdist.capture.torch_api import backend_and_store, ranks_in_books
from otel_torchdist.tape.names import SPARE_OF_GROUPS
from otel_torchdist.tape.records import GroupName

if TYPE_CHECKING:
    from otel_torchdist.capture.c10d.call import Call
    from otel_torchdist.capture.c10d.reconfigure import Membership
    from otel_torchdist.capture.recorder import Recorder


class Lane:
    """The operations of one group that one backend carries out.

    Attributes:
        name_id: The group's id in the dictionary.
        rank: This rank's global number.
        sequence: Collectives issued so far.
        point_to_point: Operations so far by (source, destination, tag).
    """

    __slots__ = ("name_id", "point_to_point", "rank", "sequence")

    def __init__(self, name_id: int, rank: int) -> None:
        """Nothing has been issued."""
        self.name_id = name_id
        self.rank = rank
        self.sequence = 0
        self.point_to_point: Counter[tuple[int, int, int]] = Counter()

    def count_point_to_point(self, is_send: bool, peer: int, tag: int) -> int:
        """Count one operation among those with the same source, destination and tag; returns its place, from 1."""
        key = (self.rank, peer, tag) if is_send else (peer, self.rank, tag)
        self.point_to_point[key] += 1
        return self.point_to_point[key]

    def uncount_point_to_point(self, is_send: bool, peer: int, tag: int) -> None:
        """Take one count back: the operation was refused."""
        self.point_to_point[(self.rank, peer, tag) if is_send else (peer, self.rank, tag)] -= 1


class GroupState(Lane):
    """A process group of this rank; all of its operations are one lane, unless it has several backends.

    Attributes:
        recorder: Whose tape its operations go to.
        name: As it stands in the dictionary.
        backend_on: What the backend for a device type calls itself; '' when the group has none.
        coalescing: Operations issued since `_start_coalescing`; None outside.
        has_been_asked: Whether it is known if its Works know when they are complete.
        synchronized: Whether a collective has ended that proves that every member was there.
        is_default: Whether it is the default group.
    """

    __slots__ = (
        "__weakref__",
        "_lanes",
        "backend_on",
        "coalescing",
        "group_rank",
        "has_been_asked",
        "is_default",
        "name",
        "plans",
        "recorder",
        "reference",
        "signatures",
        "synchronized",
    )

    def __init__(self, recorder: Recorder, group: ProcessGroup, name: GroupName, group_rank: int) -> None:
        """Learn a group that was not known before, in which this rank is number `group_rank`."""
        rank = name.ranks[group_rank] if 0 <= group_rank < len(name.ranks) else group_rank
        super().__init__(recorder.tape.names.intern(name, SPARE_OF_GROUPS), rank)
        self.group_rank = group_rank
        self.recorder = recorder
        self.name = name
        self._lanes: dict[str, Lane] | None = {} if has_several_backends(group) else None
        self.coalescing: list[Call] | None = None
        self.synchronized = False
        self.has_been_asked = False
        self.is_default = False
        self.reference = weakref.ref(group)
        self.backend_on = Backends(self.reference)
        self.signatures = Signatures(recorder.tape.names, self.backend_on, len(name.ranks))
        self.plans = Plans(self)

    @property
    def issued(self) -> int:
        """Collectives issued so far, on all of its lanes."""
        return self.sequence + sum(lane.sequence for lane in tuple((self._lanes or {}).values()))

    def end_by_wait(self) -> None:
        """Its backend's Works cannot be asked whether they are complete: from now on only a wait shows an end."""
        if not self.signatures.only_wait_ends:
            self.signatures.only_wait_ends = True
            self.plans.forget()

    def give_up(self) -> None:
        """It is over: nothing may keep the tape and its memory. Many trainings run without Python's collector."""
        self.plans.give_up()

    def global_rank(self, group_rank: int) -> int:
        """Global rank of a member; -1 when there is no such member."""
        ranks = self.name.ranks
        return ranks[group_rank] if 0 <= group_rank < len(ranks) else -1

    def lane_of(self, device: str) -> Lane:
        """Where operations on a type of device are counted."""
        if self._lanes is None:
            return self
        lane = self._lanes.get(device)
        if lane is None:
            name = dataclasses.replace(self.name, backend=self.backend_on(device), device=device)
            lane = self._lanes[device] = Lane(self.recorder.tape.names.intern(name, SPARE_OF_GROUPS), self.rank)
        return lane

    def has_met(self, rank: int) -> bool:
        """Whether a collective of this group has ended that proves that `rank` had entered it."""
        return self.synchronized and rank in self.name.ranks


class Groups:
    """The groups of this process.

    Attributes:
        by_identity: What is known of them, by the `id` of torch's Python object.
    """

    def __init__(self) -> None:
        """No group is known yet."""
        self.by_identity: dict[int, GroupState] = {}
        self._before_us: weakref.WeakSet[ProcessGroup] = weakref.WeakSet()

    def born_before_us(self, groups: list[ProcessGroup]) -> None:
        """Remember groups whose first collectives nobody counted: their sequence cannot be compared."""
        self._before_us.update(groups)

    def find(self, group: ProcessGroup) -> GroupState | None:
        """The state of a known group."""
        return self.by_identity.get(id(group))

    def learn(
        self,
        recorder: Recorder,
        group: ProcessGroup,
        ranks: tuple[int, ...] | None = None,
        nth: int | None = None,
        membership: Membership | None = None,
    ) -> GroupState:
        """Take up a group at its creation or when it is first met in an operation.

        Args:
            recorder: Whose tape it belongs to.
            group: The group.
            ranks: Global ranks of its members, where the caller knows them.
            nth: How many groups with these members came before, where it was counted already.
            membership: Where its members have just changed.
        """
        if membership is not None:
            ranks, nth = membership.ranks, 0
        members = ranks if ranks is not None else member_ranks(group)
        is_listed = ranks is not None or ranks_in_books(group) is not None
        # A group that a library made by hand, smaller than the world: who its members are is a guess.
        is_guess = not is_listed and group.size() != recorder.tape.identity.world_size
        name = GroupName(
            name=_text_of(group, "group_name"),
            description=_text_of(group, "group_desc").replace("undefined", ""),
            ranks=members,
            nth=recorder.count_group(members) if nth is None else nth,
            backend=_configured_backend(group),
            aligned=group not in self._before_us and not is_guess and (membership is None or membership.is_known),
            epoch=membership.epoch if membership is not None else -1,
        )
        state = GroupState(recorder, group, name, group.rank() if membership is None else membership.group_rank)
        identity = id(group)
        # The object may go while C++ keeps the group; another object may then get its id.
        weakref.finalize(group, self._forget, identity, weakref.ref(state)).atexit = False
        self.by_identity[identity] = state
        return state

    def _forget(self, identity: int, reference: weakref.ref[GroupState]) -> None:
        state = reference()
        if state is not None and self.by_identity.get(identity) is state:
            del self.by_identity[identity]
            state.give_up()

    def clear(self) -> None:
        """Forget every group."""
        for state in self.states():
            state.give_up()
        self.by_identity.clear()

    def states(self) -> list[GroupState]:
        """All known groups."""
        return list(self.by_identity.values())


def member_ranks(group: ProcessGroup) -> tuple[int, ...]:
    """Global ranks of a group's members by their rank in the group; as torch's books say, else 0 to size - 1."""
    by_global = ranks_in_books(group)
    if by_global is None:
        return tuple(range(group.size()))
    return tuple(sorted(by_global, key=by_global.__getitem__))


def _text_of(group: ProcessGroup, attribute: str) -> str:
    try:
        return str(getattr(group, attribute))
    except RuntimeError as error:  # it has no backend yet, so torch has not named it
        _guard.pass_on(error)
        return ""


class Backends:
    """What a group's backends call themselves. It knows the group only weakly, so that no cycle keeps the tape.

    Attributes:
        names: Those that have been asked for, by device type.
    """

    def __init__(self, reference: weakref.ref[ProcessGroup]) -> None:
        self._reference = reference
        self.names: dict[str, str] = {}

    def __call__(self, device: str) -> str:
        """The name of the backend for a device type; '' when the group has none."""
        known = self.names.get(device, "")
        group = None if known else self._reference()
        if group is not None:
            known = self.names[device] = backend_name(group, device)
        return known


def has_several_backends(group: ProcessGroup) -> bool:
    """Whether it has different backends for different types of devices."""
    try:
        backends = [group._get_backend(device) for device in group._device_types]
    except (RuntimeError, ValueError) as error:
        _guard.pass_on(error)
        return False
    return len({id(backend) for backend in backends}) > 1


@_guard.calls_plug_ins
def backend_name(group: ProcessGroup, device: str) -> str:
    """`gloo`, `nccl`, … for a device type; '' when the group has no backend for it."""
    try:
        backend = group._get_backend(torch.device(device))
    except (RuntimeError, ValueError) as error:
        _guard.pass_on(error)
        return ""
    try:
        return str(backend.name())
    except RuntimeError as error:  # torch 2.8's fake backend has no name
        _guard.pass_on(error)
        configured = _configured_backend(group)  # `gloo`, or `cpu:gloo,cuda:fake`
        by_device = dict(part.split(":", 1) for part in configured.split(",") if ":" in part)
        return by_device.get(device, configured)


def _configured_backend(group: ProcessGroup) -> str:
    return str(backend_and_store(group)[0])
