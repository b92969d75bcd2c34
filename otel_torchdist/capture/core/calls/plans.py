"""Makes plans: the constant part of the records of one kind of calls from one call site."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from otel_torchdist import guard
from otel_torchdist.capture.core.calls.call import SOMETIMES, GroupState, Plan, PlanKey
from otel_torchdist.capture.core.calls.signatures import MAX_SUMMED, line_of, with_size
from otel_torchdist.capture.core.torch_api import LIST, SHOWS_BACKWARD
from otel_torchdist.model.collectives import SEND
from otel_torchdist.model.kinds import Flag, Phase, RecordKind
from otel_torchdist.tape.writer import TapeWriter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_torchdist.capture.core.calls.schemas import OperationSchema


def write_splits(plan: Plan, operation: OperationSchema, args: tuple[Any, ...], entered_ns: int, thread: int) -> bytes:
    """Record the split sizes of an uneven `all_to_all`. Return the constant part of the call's record, which follows.

    The sizes come from arguments and shapes on the host, never from the content of a tensor.
    """
    try:
        sent, output = args[operation.described], args[operation.received]
        if type(sent) is LIST:
            splits = _splits_of_list(sent, output)
        else:
            outgoing, incoming = args[operation.input_splits], args[operation.output_splits]
            if not outgoing and not incoming:
                return plan.tail
            splits = _splits_of_tensor(sent, output, outgoing, incoming)
        if splits is None:
            return plan.tail
        from otel_torchdist.tape.records.splits import pack_splits  # imported late: few programs exchange unevenly

        plan.tape.write_splits(pack_splits(entered_ns, thread, *splits))
        return plan.tail_read
    except Exception as error:
        guard.report("split sizes", error)
        return plan.tail


def _splits_of_tensor(
    sent: Any, output: Any, outgoing: Sequence[int], incoming: Sequence[int]
) -> tuple[Sequence[int], int, int, Sequence[int]] | None:
    """Return the split of an `all_to_all_single`: sent rows per member, row bytes, received bytes, received rows.

    Returns None if the split is even. A side (sent or received) without split sizes has equal parts.
    """
    members = len(outgoing or incoming)
    parts = outgoing or [sent.shape[0] // members] * members
    expected = incoming or [output.shape[0] // members] * members
    leaving, arriving = sum(parts), sum(expected)
    if leaving == arriving and _are_alike(parts) and _are_alike(expected):
        return None
    row = sent.nbytes // leaving if leaving else output.nbytes // arriving
    if output.nbytes != arriving * row:  # the output's rows have another size
        expected = ()
    return parts, row, output.nbytes, expected


def _splits_of_list(sent: Sequence[Any], output: Sequence[Any]) -> tuple[Sequence[int], int, int, Sequence[int]] | None:
    """Return the split of an `all_to_all` of lists. Lists of more than `MAX_SUMMED` tensors count as even."""
    if not 0 < len(sent) <= MAX_SUMMED:
        return None
    parts, unit = [tensor.numel() for tensor in sent], sent[0].itemsize
    expected = [tensor.numel() for tensor in output]
    received = sum(expected)
    if received == sum(parts) and _are_alike(parts) and _are_alike(expected):
        return None
    return parts, unit, received * unit, expected


def gathers_alike(sent: Sequence[Any], outputs: Sequence[Sequence[Any]]) -> bool:
    """Return whether an `all_gather` has outputs of equal size. More than `MAX_SUMMED` outputs count as equal."""
    if len(sent) != 1 or len(outputs) != 1:
        return False
    size, parts = sent[0].numel(), outputs[0]
    return len(parts) > MAX_SUMMED or [part.numel() for part in parts].count(size) == len(parts)


def _are_alike(parts: Sequence[int]) -> bool:
    return parts.count(parts[0]) == len(parts)


UNSET_TIMEOUT: Final = -1
"""Value of an operation's timeout argument that means the group's timeout."""
MAX_CACHED: Final = 2048
REDUCE_OP_FIRST: Final = 16
REDUCE_OP_EVERY: Final = 31
"""A plan's reduce op is read on its first 16 calls, then whenever the group's sequence number is a multiple of 31: in
the same operations on every rank, whichever lines the ranks call them from. Reading it is a TorchScript call of 2 to
5 µs, up to half the cost of a recorded call. At a call site that has changed its reduce op, the op is always read. Each
record states whether its reduce op was read."""


def read_arguments(
    key: PlanKey, plan: Plan, operation: OperationSchema, args: tuple[Any, ...], entered_ns: int
) -> tuple[Plan, bytes]:
    """Read the arguments that vary between calls of a plan. Return the matching plan and the record's constant part."""
    if plan.reduce_op >= 0:
        plan = _read_reduce_op(key, plan, operation, args)
        tail = plan.tail_read
    else:
        tail = plan.tail
        if operation.received >= 0:
            tail = write_splits(plan, operation, args, entered_ns, thread=key[-2])
        elif operation.gathered >= 0 and not gathers_alike(args[operation.described], args[operation.gathered]):
            tail = plan.tail_read
    if plan.ragged_factor is not None:
        tail = with_size(tail, plan.ragged_factor, args[operation.described])
    return plan, tail


def _read_reduce_op(key: PlanKey, plan: Plan, operation: OperationSchema, args: tuple[Any, ...]) -> Plan:
    """Compare a plan's reduce op with this call's. Return the matching plan."""
    current = args[operation.reduce_op].op()
    if current == plan.reduce_op:
        plan.reads += 1
        if plan.reads >= REDUCE_OP_FIRST and not plan.varies and plan.ragged_factor is None:
            plan.reading = SOMETIMES
        return plan
    plan.group.ragged.forget_plans()
    changed = make_plan(plan.group, key, operation, args)
    if changed is None:
        return plan
    changed.varies = True
    return changed


def make_plan(group: GroupState, key: PlanKey, operation: OperationSchema, args: tuple[Any, ...]) -> Plan | None:
    """Make the plan of a new kind of call. Return None for meta and fake tensors, which do not communicate.

    Args:
        group: The process group.
        key: As built by `HotPath.enter`. Ends with asynchronous, peer, tag, coalesced, label, whether a backward pass
            runs, thread and call site.
        operation: The called operation.
        args: Its arguments.
    """
    if group.is_over:
        return None
    is_async, peer, tag, is_coalesced, label, in_backward, thread, site = key[-8:]
    line = line_of(key, operation, args)
    ragged = group.ragged.find(line) if line is not None else None
    if ragged is not None:
        return ragged
    begun_ns = time.monotonic_ns()
    is_ragged = line is not None and group.ragged.count_shape(line)
    described = group.signatures.describe(operation, args, has_shapes=not is_ragged)
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
    site_id = recorder.call_paths.name_of(site)
    channel = group.channel_of(described.device)
    call_timeout = args[operation.timeout] if 0 <= operation.timeout < len(args) else UNSET_TIMEOUT
    has_call_timeout = call_timeout != UNSET_TIMEOUT
    times_forgotten = recorder.message_counters.times_forgotten
    counter, is_comparable = channel.counter, True
    if operation.point_to_point:
        counter, is_comparable = channel.message_counter(operation.name == SEND, peer, tag)
    group_id = channel.name_id
    if has_call_timeout or not is_comparable:
        group_id = group.name_of_variant(channel, described.device, has_call_timeout, is_comparable)
    prepare = partial(
        TapeWriter.prepare,
        message_bytes=described.bytes_as_root if peer == group.rank else described.bytes_as_member,
        group=group_id,
        signature=described.signature,
        call_site=site_id,
        label=recorder.intern_label(label) if label else 0,
        peer=peer,
        tag=tag,
        thread=thread,
        kind=RecordKind.OPERATION,
        phase=_phase(in_backward, has_site=code is not None),
        caller=recorder.callers.current(),
    )
    tail = tail_read = prepare(flags=flags)
    if described.reduce_op >= 0:
        tail = prepare(flags=flags | Flag.REDUCE_OP_UNREAD)
    elif operation.received >= 0 or operation.gathered >= 0:
        tail_read = prepare(flags=flags | Flag.UNEVEN)
    on_cpu, reduce_op = described.on_cpu, described.reduce_op
    plan = Plan(group, channel, counter, operation, tail, tail_read, int(flags), on_cpu, reduce_op, code)
    if in_backward and is_async and operation.name == "all_reduce":  # DDP does not wait in the call
        plan.buckets = group.buckets
    if is_ragged and line is not None:
        plan.becomes_ragged(group.signatures.contributed_bytes(operation, 1, is_root=peer == group.rank))
        group.ragged.keep(line, plan)
    else:
        if len(group.plans) >= MAX_CACHED:  # shapes or tags that never repeat
            group.plans.clear()
        group.plans[key] = plan
    if recorder.message_counters.times_forgotten != times_forgotten:
        group.forget_plans()  # the plan's counter may have been forgotten
    # Planning takes as long as dozens of calls. Each time is measured: a sample would not represent other plans.
    plan.planned_ns = time.monotonic_ns()
    plan.tape.add_overhead(plan.planned_ns - begun_ns, 0)
    return plan


def _phase(in_backward: bool, has_site: bool) -> Phase:
    """Return the phase of calls. It is unknown on threads without user code, such as gloo's in a callback."""
    if in_backward:
        return Phase.BACKWARD
    return Phase.OUTSIDE_BACKWARD if SHOWS_BACKWARD and has_site else Phase.UNKNOWN
