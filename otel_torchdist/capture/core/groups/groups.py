"""The process groups of this rank: their members, and their states by identity."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from torch.distributed import ProcessGroup

from otel_torchdist.capture.core.calls.backends import at_timeout_of, configured_backend, follow_timeouts, timeout_of
from otel_torchdist.capture.core.calls.call import GroupState
from otel_torchdist.capture.core.groups.worlds import DEFAULT_WORLD, SHOWS_STORES, GroupWorld
from otel_torchdist.capture.core.part import SessionPart
from otel_torchdist.capture.core.torch_api import registered_ranks, text_of_group
from otel_torchdist.model.names import GroupName

if TYPE_CHECKING:
    from otel_torchdist.capture.core.groups.membership import Membership
    from otel_torchdist.capture.core.recorder import Recorder
    from otel_torchdist.capture.core.torch_api import Patches


class Groups(SessionPart):
    """The groups of this process.

    Attributes:
        by_identity: States of the groups, by the `id` of torch's Python object.
        default: The default group; None until it is known.
    """

    def __init__(self) -> None:
        self.by_identity: dict[int, GroupState] = {}
        self.default: GroupState | None = None
        self._uncounted: weakref.WeakSet[ProcessGroup] = weakref.WeakSet()

    def mark_uncounted(self, groups: list[ProcessGroup]) -> None:
        """Mark groups whose first collectives were not counted. Their sequence numbers cannot be compared."""
        self._uncounted.update(groups)

    def count(self, group: ProcessGroup) -> None:
        """Mark a group as counted from now on, because it becomes the default group on all members at the same time."""
        self._uncounted.discard(group)

    def find(self, group: ProcessGroup) -> GroupState | None:
        """Return the state of a known group."""
        return self.by_identity.get(id(group))

    def register(
        self,
        recorder: Recorder,
        group: ProcessGroup,
        ranks: tuple[int, ...] | None = None,
        nth: int | None = None,
        membership: Membership | None = None,
        world: GroupWorld = DEFAULT_WORLD,
        address: str = "",
    ) -> GroupState:
        """Register a group at its creation, at its first operation, or when its members have changed.

        Args:
            recorder: Recorder of its operations.
            group: The group.
            ranks: Global ranks of its members, if the caller knows them.
            nth: Number of earlier groups with these members, if the group is already counted.
            membership: The new membership, if its members have just changed.
            world: The world of the group.
            address: Address of its rendezvous; '' if unknown.
        """
        if membership is not None:
            ranks, nth = membership.ranks, 0
        if ranks is None and world.is_standalone:
            ranks = tuple(range(group.size()))
        members = ranks if ranks is not None else member_ranks(group)
        is_listed = ranks is not None or registered_ranks(group) is not None
        # The members of a group that is not in torch's registry are a guess, unless it has the default world's store
        # and size.
        is_guess = not is_listed and (group.size() != recorder.tape.identity.world_size or not SHOWS_STORES)
        backend = configured_backend(group)
        name = GroupName(
            name=text_of_group(group, "group_name") or (f"world on {world.store}" if world.is_standalone else ""),
            description=text_of_group(group, "group_desc"),
            ranks=members,
            nth=recorder.count_group(members, world.name) if nth is None else nth,
            backend=backend,
            aligned=group not in self._uncounted and not is_guess and (membership is None or membership.is_known),
            epoch=membership.epoch if membership is not None else -1,
            timeout_ms=timeout_of(group),
            at_timeout=at_timeout_of(backend),
            world=world.name,
            world_rank=world.rank,
            address=address,
        )
        state = GroupState(recorder, group, name, group.rank() if membership is None else membership.group_rank)
        identity = id(group)
        # The Python object may be freed while C++ keeps the group. Another object may then get its id.
        weakref.finalize(group, self._forget, identity, weakref.ref(state)).atexit = False
        before = self.by_identity.get(identity)
        if before is not None:  # the native library identifies a group by its address, which stays the same
            before.forget_plans()
        self.by_identity[identity] = state
        return state

    def hook(self, patches: Patches) -> None:
        """Patch the setters of timeouts."""
        follow_timeouts(patches, self._renew_timeouts)

    def _renew_timeouts(self) -> None:
        """Read the timeouts of all groups again."""
        for state in self.states():
            state.renew_timeout()

    def _forget(self, identity: int, reference: weakref.ref[GroupState]) -> None:
        state = reference()
        if state is not None and self.by_identity.get(identity) is state:
            del self.by_identity[identity]
            state.give_up()

    def ends(self, recorder: Recorder) -> None:
        """Drop all groups."""
        self.leave_groups()

    def forget_in_child(self) -> None:
        """Drop all groups."""
        self.leave_groups()

    def leave_groups(self) -> None:
        """Drop all groups.

        A standalone process group may be used again, on a tape that has not counted its first collectives.
        """
        standalone = (state.reference() for state in self.states() if state.name.world)
        self._uncounted.update(filter(None, standalone))
        for state in self.states():
            state.give_up()
        self.by_identity.clear()
        self.default = None

    def issued_by_default(self) -> int:
        """Return the number of collectives that the default group has issued."""
        return self.default.issued if self.default is not None else 0

    def states(self) -> list[GroupState]:
        """Return all known groups."""
        return list(self.by_identity.values())


def member_ranks(group: ProcessGroup) -> tuple[int, ...]:
    """Return the global ranks of a group's members by group rank, from torch's registry, else 0 to size - 1."""
    by_global = registered_ranks(group)
    if by_global is None:
        return tuple(range(group.size()))
    return tuple(sorted(by_global, key=by_global.__getitem__))
