"""Follows `ProcessGroup.reconfigure`, which changes the members of a group (gloo and nccl2, torch 2.15 and later).

After `reconfigure` the group has different members and ranks, and its sequence numbers restart at 1. So it is recorded
as a different group. Its identity includes the id that the members agreed on for this membership, and sequence numbers
of different memberships are never compared.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from torch.distributed import ProcessGroup

from otel_torchdist import guard
from otel_torchdist.capture.core.calls.call import OpenCall, Plan
from otel_torchdist.capture.core.calls.schemas import OperationSchema
from otel_torchdist.capture.core.part import SessionPart
from otel_torchdist.capture.core.torch_api import LIST
from otel_torchdist.capture.upstream import core
from otel_torchdist.model.collectives import Contribution
from otel_torchdist.model.kinds import Flag, How, RecordKind
from otel_torchdist.model.names import SignatureName
from otel_torchdist.tape.writer import TapeWriter

if TYPE_CHECKING:
    from otel_torchdist.capture.core.c10d.completion import Works
    from otel_torchdist.capture.core.calls.call import GroupState
    from otel_torchdist.capture.core.groups.groups import Groups
    from otel_torchdist.capture.core.torch_api import Patches

_SCHEMA: Final = OperationSchema(
    index=-1,
    overload=None,
    name="reconfigure",
    group=0,
    described=0,
    reduce_op=-1,
    peer=-1,
    tag=-1,
    async_op=-1,
    work=0,
    point_to_point=False,
    synchronizing=True,
    contribution=Contribution.NOTHING,
)


class Reconfigurations(SessionPart):
    """The session part that follows `ProcessGroup.reconfigure`."""

    def __init__(self, groups: Groups, works: Works, find_group: Callable[[ProcessGroup], GroupState | None]) -> None:
        """Initialize the follower; `hook` patches torch.

        Args:
            groups: Known groups.
            works: Follows the Work that `reconfigure` returns.
            find_group: Returns the state of a group, or None if nothing can be recorded. Registers new groups.
        """
        self._groups = groups
        self._works = works
        self._find_group = find_group

    def hook(self, patches: Patches) -> None:
        """Patch `reconfigure` if this torch has it."""
        patches.replace(ProcessGroup, core.RECONFIGURE, self._make_reconfigure)

    def _make_reconfigure(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def reconfigure(group: ProcessGroup, options: Any, *args: Any, **kwargs: Any) -> Any:
            call = None
            with guard.guarded("reconfigure"):
                call = self._begin(group, options)
            try:
                work = original(group, options, *args, **kwargs)
            except BaseException as error:
                if call is not None:
                    self._works.ended(call, How.FAILED, error)
                raise
            if call is not None:
                with guard.guarded("reconfigure"):
                    self._works.follow_coalesced([call], work)
            return work

        return reconfigure

    def _begin(self, group: ProcessGroup, options: Any) -> OpenCall | None:
        """Register the new membership. `reconfigure` drops the old members even if it fails."""
        from otel_torchdist.capture.core.groups.membership import find_membership

        before = self._find_group(group)
        if before is None:
            return None
        handles: Any = options.handles
        # For a set, the backend chooses the order. All members must record the same order, so we sort.
        ordered: list[str] = list(handles) if type(handles) is LIST else sorted(handles)
        handle = core.RECONFIGURE_HANDLE.of(group)()
        membership = find_membership(before.name.ranks, handle, ordered, int(options.uuid))
        recorder = before.recorder
        state = self._groups.register(recorder, group, membership=membership)
        if before.is_default:
            state.become_default()
        if self._groups.default is before:
            self._groups.default = state
        return _publish(state)


def _publish(state: GroupState) -> OpenCall:
    """Record the reconfiguration as entered. It stays open until all members have joined."""
    recorder = state.recorder
    tape = recorder.tape
    signature = SignatureName(_SCHEMA.name, reduce_op="", shapes=(), dtypes=(), device="", tensors=0)
    site = recorder.call_sites.find(0)
    code = recorder.call_sites.code_at(site)
    tail = TapeWriter.prepare(
        message_bytes=0,
        group=state.name_id,
        signature=tape.names.intern(signature),
        call_site=recorder.call_paths.name_of(site),
        label=0,
        peer=-1,
        tag=0,
        thread=threading.get_native_id(),
        kind=RecordKind.RENDEZVOUS,
        flags=Flag.ASYNC,
    )
    entered = time.monotonic_ns()
    number = tape.begin_prepared(entered, recorder.step, 1, tail)
    return OpenCall(
        number, entered, Plan(state, state, state.counter, _SCHEMA, tail, tail, int(Flag.ASYNC), True, -1, code)
    )
