"""Follows the creation of process groups by any caller.

The hooks are where all paths meet: `_new_process_group_helper`, `_update_default_pg` and the method `split_group`.
`init_device_mesh` holds its own references to `init_process_group` and `split_group`, so patches of those would miss
it. Torch 2.8 has no such method; there, a group that was split off is known from its first operation on.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
import time
import weakref
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Final, Protocol

from torch.distributed import ProcessGroup

from otel_torchdist import guard
from otel_torchdist.capture.c10d.failures import failure_word
from otel_torchdist.capture.c10d.groups.worlds import DEFAULT_WORLD, PlaceInWorld, world_by_hand
from otel_torchdist.capture.c10d.timeouts import at_timeout_of, milliseconds_of, timeout_of
from otel_torchdist.capture.torch_api import backend_and_store, c10d, ranks_in_books
from otel_torchdist.tape.layout import How, RecordKind
from otel_torchdist.tape.names.model import SPARE_OF_GROUPS, AtTimeout, GroupName, SignatureName

if TYPE_CHECKING:
    from otel_torchdist.capture.recorder import Recorder
    from otel_torchdist.capture.torch_api import Patches


DEFAULT_GROUP: Final = "default_pg"
"""How `init_process_group` describes the group that it creates; what makes another world by hand does not."""


class GroupEvents(Protocol):
    """Receiver of group events."""

    def default_group_begins(self, rank: int, world_size: int) -> Recorder | None:
        """Prepare for a default group that is about to be created; return its recorder."""
        ...

    def world_begins(self, place: PlaceInWorld, world_size: int) -> Recorder | None:
        """Prepare for a world that is about to be made by hand; return the recorder of its operations."""
        ...

    def place_of(self, group: ProcessGroup) -> PlaceInWorld:
        """Which world a group is of."""
        ...

    def current_recorder(self) -> Recorder | None:
        """The recorder in use; None if there is none."""
        ...

    def group_created(self, rendezvous: Rendezvous, group: ProcessGroup) -> None:
        """Register a new group of which this rank is a member."""
        ...

    def default_group_set(self, group: ProcessGroup | None) -> None:
        """Follow torch's default group, which is `group` from now on, or none."""
        ...


class Rendezvous:
    """The creation of one group, recorded as an operation that is open until every member has joined.

    A signal handler may raise at any moment before, in or after it. No record may stay open because of that: torch has
    given up the creation, and nothing would ever complete the record. So this object exists before its record does, and
    the frame that calls torch's own code reports the end to it.

    Attributes:
        recorder: Recorder of the operation; None while it is not recorded.
        ranks: Global ranks of the members.
        nth: How many groups with these members came before.
        place: Which world the group is of.
    """

    def __init__(self) -> None:
        self.recorder: Recorder | None = None
        self.place = DEFAULT_WORLD
        self.ranks: tuple[int, ...] = ()
        self.nth = 0
        self._number = 0
        self._entered = 0

    def enter(
        self,
        recorder: Recorder,
        kind: str,
        ranks: tuple[int, ...],
        name: str,
        description: str,
        backend: str,
        timeout_ms: int,
        place: PlaceInWorld = DEFAULT_WORLD,
    ) -> None:
        """Publish the operation as entered.

        Args:
            recorder: Recorder of the operation.
            kind: The function that creates the group, as users know it.
            ranks: Global ranks of the members.
            name: The group's name in torch.
            description: What the group is for.
            backend: The backend as requested.
            timeout_ms: The timeout of its operations in milliseconds; 0 if it is not known.
            place: Which world the group is of.
        """
        self.recorder = recorder
        self.ranks = ranks
        self.place = place
        self.nth = recorder.count_group(ranks, place.world)
        tape = recorder.tape
        at_timeout = at_timeout_of(backend)
        group = GroupName(
            name,
            description,
            ranks,
            self.nth,
            backend,
            aligned=True,
            timeout_ms=timeout_ms if at_timeout is not AtTimeout.UNKNOWN else 0,
            at_timeout=at_timeout,
            world=place.world,
            here=place.here,
        )
        signature = SignatureName(kind, reduce_op="", shapes=(), dtypes=(), device="", tensors=0)
        self._entered = time.monotonic_ns()
        self._number = tape.begin(
            entered_ns=self._entered,
            step=recorder.step,
            sequence=self.nth + 1,
            message_bytes=0,
            group=tape.names.intern(group, SPARE_OF_GROUPS),
            signature=tape.names.intern(signature),
            call_site=_call_site(recorder),
            label=0,
            peer=-1,
            tag=0,
            thread=threading.get_native_id(),
            kind=RecordKind.RENDEZVOUS,
            flags=0,
        )

    def over(self) -> None:
        """Record that the group exists, and that this process lives.

        All members' tapes have been created by then. So a rank that dies at once, before it knows the id of its run, is
        known to have lived at the same time as the others.
        """
        self._complete(How.CALL, 0)
        if self.recorder is not None:
            self.recorder.tape.beat()

    def failed(self, error: BaseException) -> None:
        """Record that the creation raised or was interrupted. Does nothing once it is over."""
        if self.recorder is None or not self._entered:
            return
        self._number = self._number or self.recorder.tape.begun_at(self._entered)
        failure = 0
        try:
            failure = failure_word(self.recorder.tape.names, error)
        finally:
            self._complete(How.FAILED, failure)

    def _complete(self, how: How, failure: int) -> None:
        if self.recorder is not None and self._number:
            self.recorder.tape.complete(self._number, self._entered, time.monotonic_ns(), how, failure)


def _call_site(recorder: Recorder) -> int:
    site = recorder.call_sites.find(0)
    return recorder.call_sites.name_of(recorder.call_sites.code_at(site), site[1])


def follow_creation(patches: Patches, events: GroupEvents) -> None:
    """Hook the creation of groups."""
    patches.replace(c10d, "_new_process_group_helper", lambda original: _helper(original, events))
    patches.replace(c10d, "_update_default_pg", lambda original: _update_default(original, events))
    split: weakref.WeakKeyDictionary[ProcessGroup, Rendezvous] = weakref.WeakKeyDictionary()
    patches.replace(ProcessGroup, "split_group", lambda original: _split(original, events, split))
    patches.replace(c10d, "_register_pg_in_world", lambda original: _register(original, events, split))


def _helper(original: Callable[..., Any], events: GroupEvents) -> Callable[..., Any]:
    signature = inspect.signature(original)

    def enter(rendezvous: Rendezvous, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        arguments = bound.arguments
        members, size, name = arguments["global_ranks_in_group"], arguments["group_size"], str(arguments["group_name"])
        is_world, description, place = not members, arguments.get("group_desc") or "", DEFAULT_WORLD
        if is_world and size < 1:
            return  # MPI: ranks are not known before the group is
        if is_world and description != DEFAULT_GROUP:
            place = world_by_hand(name, arguments["store"], arguments["group_rank"], size)
        if place.is_by_hand:
            recorder = events.world_begins(place, size)
        elif is_world:
            recorder = events.default_group_begins(arguments["group_rank"], size)
        else:
            recorder = events.current_recorder()
        if recorder is None:
            return
        if not is_world and recorder.tape.identity.rank not in members:
            return
        rendezvous.enter(
            recorder,
            "init_process_group" if is_world else "new_group",
            tuple(range(size)) if is_world else tuple(int(rank) for rank in members),
            name,
            description,
            str(arguments["backend"]),
            milliseconds_of(arguments.get("timeout")),
            place,
        )

    @functools.wraps(original)
    def helper(*args: Any, **kwargs: Any) -> Any:
        rendezvous = Rendezvous()
        with _recorded(rendezvous):
            with guard.guarded("group creation"):
                enter(rendezvous, args, kwargs)
            result = original(*args, **kwargs)
            with guard.guarded("group creation"):
                rendezvous.over()
        with guard.guarded("group creation"):
            group = result[0]
            if rendezvous.recorder is not None and isinstance(group, ProcessGroup):
                events.group_created(rendezvous, group)
        return result

    return helper


def _split(
    original: Callable[..., Any], events: GroupEvents, split: weakref.WeakKeyDictionary[ProcessGroup, Rendezvous]
) -> Callable[..., Any]:
    def enter(rendezvous: Rendezvous, parent: ProcessGroup, given: Any, names: dict[str, Any]) -> None:
        recorder, books = events.current_recorder(), ranks_in_books(parent)
        if recorder is None or books is None:
            return
        by_group_rank = {group_rank: rank for rank, group_rank in books.items()}
        ranks, place = tuple(by_group_rank[int(group_rank)] for group_rank in given), events.place_of(parent)
        own = place.here if place.is_by_hand else recorder.tape.identity.rank
        if own not in ranks:
            return  # this rank takes part in the split, but is not in the group
        name, description = names.get("group_name") or "", names.get("group_desc") or ""
        timeout_ms = milliseconds_of(names.get("timeout")) or timeout_of(parent)
        backend = backend_and_store(parent)[0]
        rendezvous.enter(recorder, "split_group", ranks, name, description, backend, timeout_ms, place)

    def split_group(parent: ProcessGroup, ranks: Any, *args: Any, **kwargs: Any) -> Any:
        rendezvous = Rendezvous()
        with _recorded(rendezvous):
            with guard.guarded("group split"):
                enter(rendezvous, parent, ranks, kwargs)
            group = original(parent, ranks, *args, **kwargs)
            with guard.guarded("group split"):
                rendezvous.over()
        with guard.guarded("group split"):
            if rendezvous.recorder is not None and isinstance(group, ProcessGroup):
                split[group] = rendezvous
        return group

    return split_group


def _register(
    original: Callable[..., Any], events: GroupEvents, split: weakref.WeakKeyDictionary[ProcessGroup, Rendezvous]
) -> Callable[..., Any]:
    @functools.wraps(original)
    def register(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        with guard.guarded("group split"):
            group = next(iter((*args, *kwargs.values())))
            rendezvous = split.pop(group, None)
            if rendezvous is not None and rendezvous.recorder is not None:
                events.group_created(rendezvous, group)
        return result

    return register


@contextlib.contextmanager
def _recorded(rendezvous: Rendezvous) -> Generator[None, None, None]:
    try:
        yield
    except BaseException as error:
        with guard.guarded("group creation"):
            rendezvous.failed(error)
        raise


def _update_default(original: Callable[..., Any], events: GroupEvents) -> Callable[..., Any]:
    @functools.wraps(original)
    def update_default(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        with guard.guarded("default group"):
            group = next(iter((*args, *kwargs.values())), None)
            events.default_group_set(group if isinstance(group, ProcessGroup) else None)
        return result

    return update_default
