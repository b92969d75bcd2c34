"""Follows the creation of process groups, whoever asks for it.

Hooked where all ways meet, `_new_process_group_helper` and `_update_default_pg`: `init_device_mesh` holds its own
reference to `init_process_group` and never passes a patched one.
"""

from __future__ import annotations

import functools
import inspect
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from torch.distributed import ProcessGroup

from otel_torchdist import _guard
from otel_torchdist.capture.torch_api import c10d
from otel_torchdist.tape.layout import How, RecordKind
from otel_torchdist.tape.names import SPARE_OF_GROUPS
from otel_torchdist.tape.records import GroupName, SignatureName

if TYPE_CHECKING:
    from otel_torchdist.capture.patches import Patches
    from otel_torchdist.capture.recorder import Recorder


class GroupEvents(Protocol):
    """Who is told of groups."""

    def default_group_begins(self, rank: int, world_size: int) -> Recorder | None:
        """A default group is about to be created; returns where it is recorded."""
        ...

    def current_recorder(self) -> Recorder | None:
        """Where this rank records now."""
        ...

    def group_created(self, recorder: Recorder, group: ProcessGroup, ranks: tuple[int, ...], nth: int) -> None:
        """A group exists of which this rank is a member."""
        ...

    def default_group_set(self, group: ProcessGroup | None) -> None:
        """The default group of torch is `group` from now on, or none."""
        ...


class Rendezvous:
    """The creation of one group, recorded as an operation that is open until every member has come."""

    def __init__(self, recorder: Recorder, arguments: dict[str, Any], is_default: bool) -> None:
        """Publish it as entered."""
        ranks = arguments["global_ranks_in_group"]
        self.recorder = recorder
        self.ranks = tuple(range(arguments["group_size"])) if is_default else tuple(int(rank) for rank in ranks)
        self.nth = recorder.count_group(self.ranks)
        tape = recorder.tape
        description = arguments.get("group_desc") or ""
        name = GroupName(
            name=str(arguments["group_name"]),
            description=description,
            ranks=self.ranks,
            nth=self.nth,
            backend=str(arguments["backend"]),
            aligned=True,
        )
        kind = "init_process_group" if is_default else "new_group"
        signature = SignatureName(kind, reduce_op="", shapes=(), dtypes=(), device="", tensors=0)
        self._entered = time.monotonic_ns()
        self._number = tape.begin(
            self._entered,
            recorder.step,
            self.nth + 1,
            0,
            tape.names.intern(name, SPARE_OF_GROUPS),
            tape.names.intern(signature),
            _call_site(recorder),
            0,
            -1,
            0,
            threading.get_native_id(),
            RecordKind.RENDEZVOUS,
            0,
        )

    def over(self, error: BaseException | None = None) -> None:
        """The group exists, or its creation raised."""
        names = self.recorder.tape.names
        failure = names.intern(type(error).__qualname__) if error is not None else 0
        how = How.CALL if error is None else How.FAILED
        self.recorder.tape.complete(self._number, self._entered, time.monotonic_ns(), how, failure)


def _call_site(recorder: Recorder) -> int:
    site = recorder.call_sites.find(0)
    return recorder.call_sites.name_of(recorder.call_sites.code_at(site), site[1])


def follow_creation(patches: Patches, events: GroupEvents) -> None:
    """Hook the creation of groups."""
    patches.replace(c10d, "_new_process_group_helper", lambda original: _helper(original, events))
    patches.replace(c10d, "_update_default_pg", lambda original: _update_default(original, events))


def _helper(original: Callable[..., Any], events: GroupEvents) -> Callable[..., Any]:
    signature = inspect.signature(original)

    def begin(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Rendezvous | None:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        arguments = bound.arguments
        is_default = not arguments["global_ranks_in_group"]
        if is_default and arguments["group_size"] < 1:
            return None  # MPI: ranks are known when the group is
        if is_default:
            recorder = events.default_group_begins(arguments["group_rank"], arguments["group_size"])
        else:
            recorder = events.current_recorder()
        if recorder is None:
            return None
        if not is_default and recorder.tape.identity.rank not in arguments["global_ranks_in_group"]:
            return None
        return Rendezvous(recorder, arguments, is_default)

    @functools.wraps(original)
    def helper(*args: Any, **kwargs: Any) -> Any:
        rendezvous = None
        with _guard.guard("group creation"):
            rendezvous = begin(args, kwargs)
        if rendezvous is None:
            return original(*args, **kwargs)
        try:
            result = original(*args, **kwargs)
        except BaseException as error:
            with _guard.guard("group creation"):
                rendezvous.over(error)
            raise
        with _guard.guard("group creation"):
            rendezvous.over()
            group = result[0]
            if isinstance(group, ProcessGroup):
                events.group_created(rendezvous.recorder, group, rendezvous.ranks, rendezvous.nth)
        return result

    return helper


def _update_default(original: Callable[..., Any], events: GroupEvents) -> Callable[..., Any]:
    @functools.wraps(original)
    def update_default(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        with _guard.guard("default group"):
            group = next(iter((*args, *kwargs.values())), None)
            events.default_group_set(group if isinstance(group, ProcessGroup) else None)
        return result

    return update_default
