"""Everything about a call that is the same each time it comes from the same place: found out once, then looked up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

from otel_torchdist.capture.operations import OperationSchema
from otel_torchdist.tape.layout import Flag, RecordKind
from otel_torchdist.tape.writer import TapeWriter

if TYPE_CHECKING:
    from otel_torchdist.capture.process_group import GroupState

MAX_CACHED: Final = 4096
REDUCE_OP_FIRST: Final = 16
REDUCE_OP_EVERY: Final = 8
"""A plan's reduce op is read on its first 16 calls and on each eighth after. Reading it is a TorchScript call of
2 µs, a fifth of all that a recorded call costs; a place whose reduce op has been seen to change is read always."""

PlanKey: TypeAlias = tuple[Any, ...]


class Plan:
    """How calls of one kind from one place are recorded.

    Attributes:
        tail: The constant part of their records.
        flags: Their flags.
        on_cpu: Whether the host can know their end.
        reduce_op: The reduce op in `tail`; -1 where there is none.
        uses: Calls so far.
        varies: Whether the reduce op has been seen to change.
    """

    __slots__ = ("flags", "on_cpu", "reduce_op", "tail", "uses", "varies")

    def __init__(self, tail: bytes, flags: int, on_cpu: bool, reduce_op: int) -> None:
        """A plan that has not been used."""
        self.tail = tail
        self.flags = flags
        self.on_cpu = on_cpu
        self.reduce_op = reduce_op
        self.uses = 0
        self.varies = False

    def is_due(self) -> bool:
        """Whether this call's reduce op has to be read; counts the call."""
        self.uses = uses = self.uses + 1
        return self.reduce_op >= 0 and (uses <= REDUCE_OP_FIRST or not uses % REDUCE_OP_EVERY or self.varies)


class Plans:
    """The plans of one process group."""

    def __init__(self, group: GroupState) -> None:
        """Plan calls of `group`."""
        self._group = group
        self._known: dict[PlanKey, Plan] = {}
        self.get = self._known.get

    def read_reduce_op(self, key: PlanKey, plan: Plan, operation: OperationSchema, args: tuple[Any, ...]) -> Plan:
        """Check a plan's reduce op against this call's; the plan that fits."""
        current = args[operation.reduce_op].op()
        if current == plan.reduce_op:
            return plan
        changed = self.make(key, operation, args)
        if changed is None:
            return plan
        changed.varies = True
        return changed

    def make(self, key: PlanKey, operation: OperationSchema, args: tuple[Any, ...]) -> Plan | None:
        """Plan a call that is seen for the first time; None for meta and fake tensors, which only pretend.

        Args:
            key: As `HotPath.enter` builds it: ends with asynchronous, peer, tag, coalesced, label, thread, code and
                last instruction.
            operation: What is called.
            args: With what.
        """
        group = self._group
        is_async, peer, tag, is_coalesced, label, thread, code, instruction = key[-8:]
        described = group.signatures.describe(operation, args)
        if described is None:
            return None
        flags = described.flags
        if is_async:
            flags |= Flag.ASYNC
        if is_coalesced:
            flags |= Flag.COALESCED
        if operation.point_to_point:
            flags |= Flag.POINT_TO_POINT
        recorder = group.recorder
        tail = TapeWriter.prepare(
            described.bytes_as_root if peer == group.rank else described.bytes_as_member,
            group.name_id,
            described.signature,
            recorder.call_sites.name_of(code, instruction),
            recorder.label(label) if label else 0,
            peer,
            tag,
            thread,
            RecordKind.OPERATION,
            flags,
        )
        plan = Plan(tail, int(flags), described.on_cpu, described.reduce_op)
        if len(self._known) >= MAX_CACHED:  # shapes or tags that never repeat
            self._known.clear()
        self._known[key] = plan
        return plan
