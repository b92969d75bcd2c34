"""Process groups: their members, their sequence, and how they are recognised from one call to the next."""

from __future__ import annotations

import functools
import weakref
from collections import Counter
from typing import TYPE_CHECKING

import torch
from torch.distributed import ProcessGroup

from otel_torchdist.capture.plans import Plans
from otel_torchdist.capture.signatures import Signatures
from otel_torchdist.capture.torch_api import backend_and_store, ranks_in_books
from otel_torchdist.tape.names import SPARE_OF_GROUPS
from otel_torchdist.tape.records import GroupName

if TYPE_CHECKING:
    from otel_torchdist.capture.call import Call
    from otel_torchdist.capture.recorder import Recorder


class GroupState:
    """A process group of this rank.

    Attributes:
        recorder: Whose tape its operations go to.
        name: As it stands in the dictionary.
        name_id: Its id there.
        sequence: Collectives issued so far.
        point_to_point: Operations so far by (source, destination, tag).
        coalescing: Operations issued since `_start_coalescing`; None outside.
        synchronized: Whether a collective has ended that proves that every member was there.
        is_default: Whether it is the default group.
    """

    __slots__ = (
        "__weakref__",
        "coalescing",
        "group_rank",
        "is_default",
        "name",
        "name_id",
        "plans",
        "point_to_point",
        "rank",
        "recorder",
        "reference",
        "sequence",
        "signatures",
        "synchronized",
    )

    def __init__(self, recorder: Recorder, group: ProcessGroup, name: GroupName) -> None:
        """Learn a group that was not known before."""
        self.recorder = recorder
        self.name = name
        self.name_id = recorder.tape.names.intern(name, SPARE_OF_GROUPS)
        self.sequence = 0
        self.point_to_point: Counter[tuple[int, int, int]] = Counter()
        self.coalescing: list[Call] | None = None
        self.synchronized = False
        self.is_default = False
        self.group_rank = group.rank()
        self.rank = name.ranks[self.group_rank] if self.group_rank < len(name.ranks) else self.group_rank
        self.reference = weakref.ref(group)
        backend_of = functools.partial(_backend_of, self.reference)
        self.signatures = Signatures(recorder.tape.names, backend_of, group.size())
        self.plans = Plans(self)

    def give_up(self) -> None:
        """It is over: nothing may keep the tape and its memory. Many trainings run without Python's collector."""
        self.plans.give_up()

    def global_rank(self, group_rank: int) -> int:
        """Global rank of a member; -1 when there is no such member."""
        ranks = self.name.ranks
        return ranks[group_rank] if 0 <= group_rank < len(ranks) else -1

    def count_point_to_point(self, is_send: bool, peer: int, tag: int) -> int:
        """Count one operation among those with the same source, destination and tag; returns its place, from 1."""
        key = (self.rank, peer, tag) if is_send else (peer, self.rank, tag)
        self.point_to_point[key] += 1
        return self.point_to_point[key]

    def uncount_point_to_point(self, is_send: bool, peer: int, tag: int) -> None:
        """Take one count back: the operation was refused."""
        self.point_to_point[(self.rank, peer, tag) if is_send else (peer, self.rank, tag)] -= 1

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
        self, recorder: Recorder, group: ProcessGroup, ranks: tuple[int, ...] | None = None, nth: int | None = None
    ) -> GroupState:
        """Take up a group at its creation or when it is first met in an operation.

        Args:
            recorder: Whose tape it belongs to.
            group: The group.
            ranks: Global ranks of its members, where the caller knows them.
            nth: How many groups with these members came before, where it was counted already.
        """
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
            aligned=group not in self._before_us and not is_guess,
        )
        state = GroupState(recorder, group, name)
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
    except RuntimeError:  # it has no backend yet, so torch has not named it
        return ""


def _backend_of(reference: weakref.ref[ProcessGroup], device: str) -> str:
    group = reference()
    return "" if group is None else backend_name(group, device)


def backend_name(group: ProcessGroup, device: str) -> str:
    """`gloo`, `nccl`, … for a device type; '' when the group has no backend for it."""
    try:
        backend = group._get_backend(torch.device(device))
    except (RuntimeError, ValueError):
        return ""
    try:
        return str(backend.name())
    except RuntimeError:  # torch 2.8's fake backend has no name
        return _configured_backend(group)


def _configured_backend(group: ProcessGroup) -> str:
    return str(backend_and_store(group)[0])
