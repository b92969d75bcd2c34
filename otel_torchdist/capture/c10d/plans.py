"""Everything about a call that is the same each time it comes from the same place: found out once, then looked up."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from otel_torchdist.capture.c10d.schemas import OperationSchema
from otel_torchdist.tape.layout import Flag, RecordKind
from otel_torchdist.tape.writer import TapeWriter

if TYPE_CHECKING:
    from types import CodeType

    from otel_torchdist.capture.c10d.groups import GroupState, Lane

MAX_CACHED: Final = 2048
REDUCE_OP_FIRST: Final = 16
REDUCE_OP_EVERY: Final = 31
"""A plan's reduce op is read on its first 16 calls, and after that where the group's sequence is a multiple of 31: in
the same operations on every rank, however often each has come there from which line. Reading it is a TorchScript call
of 2 to 5 µs, up to half of all that a recorded call costs; a place whose reduce op has been seen to change is read
always. Records say whether theirs was read."""
SOMETIMES: Final = 1
ALWAYS: Final = 2

_LEFT_ALONE: Final = int(Flag.ASYNC | Flag.POINT_TO_POINT | Flag.COALESCED)

PlanKey: TypeAlias = tuple[Any, ...]


class Plan:
    """How calls of one kind from one place are recorded.

    Attributes:
        group: Their process group.
        lane: Where they are counted.
        operation: What is called.
        tape: Where they are recorded.
        tail: The constant part of their records; where there is a reduce op, of those whose op was not read.
        tail_read: The same for those whose reduce op was read.
        flags: Their flags.
        on_cpu: Whether the host can know their end.
        is_left_alone: Whether the caller goes on while they run.
        is_plain: Whether they run on the CPU, one at a time, and their callers wait for them at once.
        reduce_op: The reduce op in `tail`; -1 where there is none.
        code: Code of the call site, held because its `id` is in the key.
        reading: When the reduce op is read: `SOMETIMES`, `ALWAYS`, or 0 where there is none.
        reads: How often it has been read.
        varies: Whether it has been seen to change.
    """

    __slots__ = (
        "code",
        "flags",
        "group",
        "is_left_alone",
        "is_plain",
        "lane",
        "on_cpu",
        "operation",
        "reading",
        "reads",
        "reduce_op",
        "tail",
        "tail_read",
        "tape",
        "varies",
    )

    def __init__(
        self,
        group: GroupState,
        lane: Lane,
        operation: OperationSchema,
        tail: bytes,
        tail_read: bytes,
        flags: int,
        on_cpu: bool,
        reduce_op: int,
        code: CodeType | None,
    ) -> None:
        """A plan that has not been used."""
        self.group = group
        self.lane = lane
        self.operation = operation
        self.tape = group.recorder.tape
        self.tail = tail
        self.tail_read = tail_read
        self.flags = flags
        self.on_cpu = on_cpu
        self.is_left_alone = bool(flags & _LEFT_ALONE)
        self.is_plain = on_cpu and not self.is_left_alone
        self.reduce_op = reduce_op
        self.code = code
        self.reading = ALWAYS if reduce_op >= 0 else 0
        self.reads = 0
        self.varies = False


class Plans:
    """The plans of one process group."""

    def __init__(self, group: GroupState) -> None:
        """Plan calls of `group`."""
        self._group: GroupState | None = group
        self._known: dict[PlanKey, Plan] = {}
        self.get = self._known.get

    def give_up(self) -> None:
        """Plan nothing any more: group and plans, which refer to each other, go without Python's collector."""
        self._group = None
        self._known.clear()

    def forget(self) -> None:
        """Plan every call anew, for something has been learnt about the group."""
        self._known.clear()

    def read_reduce_op(self, key: PlanKey, plan: Plan, operation: OperationSchema, args: tuple[Any, ...]) -> Plan:
        """Check a plan's reduce op against this call's; the plan that fits."""
        current = args[operation.reduce_op].op()
        if current == plan.reduce_op:
            plan.reads += 1
            if plan.reads >= REDUCE_OP_FIRST and not plan.varies:
                plan.reading = SOMETIMES
            return plan
        changed = self.make(key, operation, args)
        if changed is None:
            return plan
        changed.varies = True
        return changed

    def make(self, key: PlanKey, operation: OperationSchema, args: tuple[Any, ...]) -> Plan | None:
        """Plan a call that is seen for the first time; None for meta and fake tensors, which only pretend.

        Args:
            key: As `HotPath.enter` builds it: ends with asynchronous, peer, tag, coalesced, label, thread and call
                site.
            operation: What is called.
            args: With what.
        """
        group = self._group
        if group is None:
            return None
        is_async, peer, tag, is_coalesced, label, thread, site = key[-7:]
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
        code = recorder.call_sites.code_at(site)
        lane = group.lane_of(described.device)
        prepare = partial(
            TapeWriter.prepare,
            described.bytes_as_root if peer == group.rank else described.bytes_as_member,
            lane.name_id,
            described.signature,
            recorder.call_sites.name_of(code, site[1]),
            recorder.label(label) if label else 0,
            peer,
            tag,
            thread,
            RecordKind.OPERATION,
        )
        tail = tail_read = prepare(flags)
        if described.reduce_op >= 0:
            tail = prepare(flags | Flag.REDUCE_OP_UNREAD)
        plan = Plan(group, lane, operation, tail, tail_read, int(flags), described.on_cpu, described.reduce_op, code)
        if len(self._known) >= MAX_CACHED:  # shapes or tags that never repeat
            self._known.clear()
        self._known[key] = plan
        return plan
