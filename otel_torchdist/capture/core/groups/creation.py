"""Follows the creation of process groups by any caller.

The patched functions are common to all paths: `_new_process_group_helper`, `_update_default_pg` and the method
`split_group`. Patches of the public functions would miss `init_device_mesh`, which holds references to
`init_process_group` and `split_group`. torch 2.8 lacks the method: a split group is registered at its first operation.
"""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch.distributed import ProcessGroup

from otel_torchdist import guard
from otel_torchdist.capture.core.calls.backends import milliseconds_of, timeout_of
from otel_torchdist.capture.core.groups.launch import Launch, address_of, follow_rendezvous
from otel_torchdist.capture.core.groups.rendezvous import GroupEvents, Rendezvous, recording_failure
from otel_torchdist.capture.core.groups.worlds import DEFAULT_WORLD, standalone_world
from otel_torchdist.capture.core.part import SessionPart
from otel_torchdist.capture.core.torch_api import backend_and_store, c10d, registered_ranks
from otel_torchdist.capture.upstream import core
from otel_torchdist.model.names import DEFAULT_DESCRIPTION, INIT_PROCESS_GROUP, NEW_GROUP

if TYPE_CHECKING:
    from otel_torchdist.capture.core.recorder import Recorder
    from otel_torchdist.capture.core.torch_api import Patches


class GroupCreation(SessionPart):
    """The session part that follows the creation of groups."""

    def __init__(self, events: GroupEvents) -> None:
        """Initialize without hooks. `events` receives the events."""
        self._events = events
        self._launch = Launch(events)

    def hook(self, patches: Patches) -> None:
        """Patch the functions that create groups."""
        events, launch = self._events, self._launch
        patches.replace(c10d, core.RENDEZVOUS, lambda original: follow_rendezvous(original, launch))
        patches.replace(c10d, core.NEW_GROUP_HELPER, lambda original: _helper(original, events, launch))
        patches.replace(c10d, core.UPDATE_DEFAULT_GROUP, lambda original: _update_default(original, events))
        split: weakref.WeakKeyDictionary[ProcessGroup, Rendezvous] = weakref.WeakKeyDictionary()
        patches.replace(ProcessGroup, core.SPLIT_GROUP, lambda original: _split(original, events, split))
        patches.replace(c10d, core.REGISTER_GROUP, lambda original: _register(original, events, split))

    def beat(self, recorder: Recorder) -> None:
        """End a launch that its thread has left by an exception."""
        self._launch.beat()


def _helper(original: Callable[..., Any], events: GroupEvents, launch: Launch) -> Callable[..., Any]:
    signature = inspect.signature(original)

    def enter(rendezvous: Rendezvous, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        arguments = bound.arguments
        members, size, name = arguments["global_ranks_in_group"], arguments["group_size"], str(arguments["group_name"])
        is_world, description, world = not members, arguments.get("group_desc") or "", DEFAULT_WORLD
        backend, timeout_ms = str(arguments["backend"]), milliseconds_of(arguments.get("timeout"))
        if rendezvous.recorder is not None:  # the launch has begun at the store
            rendezvous.has_store(name, description, backend, timeout_ms)
            return
        if is_world and size < 1:
            return  # MPI: ranks are unknown before the group exists
        if is_world and description != DEFAULT_DESCRIPTION:
            world = standalone_world(name, arguments["store"], arguments["group_rank"], size)
        if world.is_standalone:
            recorder = events.standalone_group_begins(world, size)
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
            INIT_PROCESS_GROUP if is_world else NEW_GROUP,
            tuple(range(size)) if is_world else tuple(int(rank) for rank in members),
            name,
            description,
            backend,
            timeout_ms,
            world,
            address_of(arguments.get("store")) if is_world else "",
        )

    @functools.wraps(original)
    def helper(*args: Any, **kwargs: Any) -> Any:
        rendezvous = launch.take() or Rendezvous()
        with recording_failure(rendezvous):
            with guard.guarded("group creation"):
                enter(rendezvous, args, kwargs)
            result = original(*args, **kwargs)
            with guard.guarded("group creation"):
                rendezvous.joined()
        with guard.guarded("group creation"):
            group = result[0]
            if rendezvous.recorder is not None and isinstance(group, ProcessGroup):
                events.group_created(group, rendezvous)
        return result

    return helper


def _split(
    original: Callable[..., Any], events: GroupEvents, split: weakref.WeakKeyDictionary[ProcessGroup, Rendezvous]
) -> Callable[..., Any]:
    def enter(rendezvous: Rendezvous, parent: ProcessGroup, given: Any, names: dict[str, Any]) -> None:
        recorder, registered = events.current_recorder(), registered_ranks(parent)
        if recorder is None or registered is None:
            return
        by_group_rank = {group_rank: global_rank for global_rank, group_rank in registered.items()}
        ranks, world = tuple(by_group_rank[int(group_rank)] for group_rank in given), events.world_of(parent)
        rank = world.rank if world.is_standalone else recorder.tape.identity.rank
        if rank not in ranks:
            return  # this rank takes part in the split, but is not a member
        name, description = names.get("group_name") or "", names.get("group_desc") or ""
        timeout_ms = milliseconds_of(names.get("timeout")) or timeout_of(parent)
        backend = backend_and_store(parent)[0]
        rendezvous.enter(recorder, "split_group", ranks, name, description, backend, timeout_ms, world)

    def split_group(parent: ProcessGroup, ranks: Any, *args: Any, **kwargs: Any) -> Any:
        rendezvous = Rendezvous()
        with recording_failure(rendezvous):
            with guard.guarded("group split"):
                enter(rendezvous, parent, ranks, kwargs)
            group = original(parent, ranks, *args, **kwargs)
            with guard.guarded("group split"):
                rendezvous.joined()
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
                events.group_created(group, rendezvous)
        return result

    return register


def _update_default(original: Callable[..., Any], events: GroupEvents) -> Callable[..., Any]:
    @functools.wraps(original)
    def update_default(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        with guard.guarded("default group"):
            group = next(iter((*args, *kwargs.values())), None)
            events.default_group_set(group if isinstance(group, ProcessGroup) else None)
        return result

    return update_default
