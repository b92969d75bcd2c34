"""Follows coalesced operations, which the backend issues together at the end of a coalescing block."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch.distributed import ProcessGroup

from otel_torchdist import guard
from otel_torchdist.capture.core.part import SessionPart
from otel_torchdist.capture.upstream import core
from otel_torchdist.model.kinds import How

if TYPE_CHECKING:
    from otel_torchdist.capture.core.c10d.hot_path import HotPath
    from otel_torchdist.capture.core.calls.call import GroupState, OpenCall
    from otel_torchdist.capture.core.groups.groups import Groups
    from otel_torchdist.capture.core.torch_api import Patches


class Coalescing(SessionPart):
    """The session part that follows coalescing blocks."""

    def __init__(
        self, groups: Groups, hot_path: HotPath, find_group: Callable[[ProcessGroup], GroupState | None]
    ) -> None:
        """Initialize the follower; `hook` patches torch.

        Args:
            groups: Known groups.
            hot_path: Records the operations.
            find_group: Returns the state of a group, or None if nothing can be recorded. Registers new groups.
        """
        self._groups = groups
        self._hot_path = hot_path
        self._find_group = find_group

    def hook(self, patches: Patches) -> None:
        """Patch the functions that begin and end a block."""
        patches.replace(ProcessGroup, core.START_COALESCING, self._make_start)
        patches.replace(ProcessGroup, core.END_COALESCING, self._make_end)

    def _make_start(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def start_coalescing(group: ProcessGroup, *args: Any, **kwargs: Any) -> Any:
            result = original(group, *args, **kwargs)
            with guard.guarded("coalescing"):
                state = self._find_group(group)
                if state is not None:
                    self._hot_path.abandon_coalesced(state)  # left over from a block that ended with an exception
                    state.begin_coalescing()
            return result

        return start_coalescing

    def _make_end(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def end_coalescing(group: ProcessGroup, *args: Any, **kwargs: Any) -> Any:
            state = self._groups.find(group)
            members = state.end_coalescing() if state is not None else None
            try:
                work = original(group, *args, **kwargs)
            except BaseException as error:
                for call in members or ():
                    if not call.on_cpu:
                        self._hot_path.devices.failed(call)
                    self._hot_path.works.ended(call, How.FAILED, error)
                raise
            with guard.guarded("coalescing"):
                self._end_members(members or [], work)
            return work

        return end_coalescing

    def _end_members(self, members: list[OpenCall], work: Any) -> None:
        self._hot_path.works.follow_coalesced([call for call in members if call.on_cpu], work)
        self._hot_path.devices.follow_coalesced([call for call in members if not call.on_cpu], work)
