"""Counts point-to-point operations by source, destination and tag, in bounded memory.

A program may give every message a new tag. Beyond a bound, the longest idle counters are forgotten. Later messages with
the same source, destination and tag are counted from 1 again, unlike at the peer, so their sequence numbers are marked
as not comparable. Tags that only grow are not affected: a tag above all forgotten tags is new.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import MutableSequence
from typing import Final, Protocol, cast

MAX_COUNTERS: Final = 65_536
"""Maximum number of counters, as many as a reader follows per rank: `MAX_CHANNELS` in world/following/channels.py."""
FORGOTTEN_AT_ONCE: Final = 4_096

_TAG_BITS: Final = 32
_TAG: Final = (1 << _TAG_BITS) - 1
_ONCE: Final = 1
"""A new counter counts as idle up to this value: most tags of programs that never reuse a tag occur once."""


class PlanOwner(Protocol):
    """Owner of plans that refer to counters."""

    def forget_plans(self) -> None:
        """Drop all plans."""
        ...


class CounterMemory(Protocol):
    """Memory for counters. A slot refers to a counter: its address, or the counter itself."""

    def new(self) -> object:
        """Return the slot of a new counter with value 0."""
        ...

    def counter(self, slot: object) -> MutableSequence[int]:
        """Return the counter in a slot, as a sequence of one number."""
        ...

    def forget(self, slot: object) -> None:
        """Free a slot. No plan refers to it any more."""
        ...


class ListMemory:
    """Memory for counters that only Python uses: lists."""

    def new(self) -> object:
        """Return a list that holds 0."""
        return [0]

    def counter(self, slot: object) -> MutableSequence[int]:
        """Return the list."""
        return cast("list[int]", slot)

    def forget(self, slot: object) -> None:
        """Do nothing: Python frees unused lists."""


class MessageCounters:
    """The message counters of one rank.

    Attributes:
        times_forgotten: Number of times that counters were forgotten. A plan is void if this changes while it is made.
    """

    def __init__(self, memory: CounterMemory) -> None:
        """Initialize without counters. `memory` allocates them."""
        self._memory = memory
        self._plan_owners: weakref.WeakSet[PlanOwner] = weakref.WeakSet()
        self.times_forgotten = 0
        self._lock = threading.RLock()  # a signal handler may communicate, too
        self._channels = itertools.count()
        self._slots: dict[int, object] = {}
        self._last_counts: dict[int, int] = {}
        self._recounted: set[int] = set()
        self._forgotten_up_to: dict[int, int] = {}

    def add_plan_owner(self, owner: PlanOwner) -> None:
        """Void the plans of `owner` when counters are forgotten."""
        self._plan_owners.add(owner)

    def new_channel(self) -> int:
        """Return a number for `find` that identifies a group and backend in this process."""
        return next(self._channels)

    def find(self, channel: int, is_send: bool, peer: int, tag: int) -> tuple[MutableSequence[int], bool]:
        """Return a counter, as a sequence of one number, and whether it can be compared with the peer's.

        Args:
            channel: Result of `new_channel`.
            is_send: Whether this rank is the source.
            peer: Global rank of the peer; -1 for any.
            tag: The tag.
        """
        route = (channel << 1 | is_send) << _TAG_BITS | peer + 1
        key = route << _TAG_BITS | tag
        slot = self._slots.get(key)
        if slot is None:
            slot = self._add(key, is_new=tag > self._forgotten_up_to.get(route, -1))
        return self._memory.counter(slot), key not in self._recounted

    def _add(self, key: int, is_new: bool) -> object:
        with self._lock:
            if key in self._slots:  # added by another thread
                return self._slots[key]
            if len(self._slots) >= MAX_COUNTERS:
                self._forget()
            if not is_new:
                self._recounted.add(key)
            slot = self._slots[key] = self._memory.new()
            return slot

    def _forget(self) -> None:
        """Forget counters that have not changed since the last call, oldest first."""
        idle = list[int]()
        used = dict[int, int]()
        for key, slot in self._slots.items():
            count = self._memory.counter(slot)[0]
            if count <= self._last_counts.get(key, _ONCE):
                idle.append(key)
                if len(idle) == FORGOTTEN_AT_ONCE:
                    break
            else:
                used[key] = count
        self._last_counts.update(used)
        forgotten = [*idle, *itertools.islice(used, FORGOTTEN_AT_ONCE - len(idle))]
        for key in forgotten:
            # Before the counter is dropped: if a signal handler raises in between, a reused tag is still marked.
            route, tag = key >> _TAG_BITS, key & _TAG
            self._forgotten_up_to[route] = max(tag, self._forgotten_up_to.get(route, -1))
        self.times_forgotten += 1
        for owner in list(self._plan_owners):
            owner.forget_plans()
        for key in forgotten:
            self._last_counts.pop(key, None)
            self._recounted.discard(key)
            self._memory.forget(self._slots.pop(key))
        if len(used) > FORGOTTEN_AT_ONCE:  # next time, check the unchecked counters first
            recently_used = {key: self._slots[key] for key in used if key in self._slots}
            self._slots = {key: slot for key, slot in self._slots.items() if key not in recently_used} | recently_used
