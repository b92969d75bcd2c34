"""Converts flight recorder entries into operations."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Final

from otel_torchdist.judge.world.places import user_frame
from otel_torchdist.model.calls import (
    ANY_RANK,
    NO_TAG,
    UNREAD,
    Arrival,
    Channel,
    GroupView,
    OperationId,
    OperationView,
)
from otel_torchdist.model.collectives import BARRIER, EXCHANGES, RECV, operations_where
from otel_torchdist.model.kinds import Flag, How, RecordKind
from otel_torchdist.model.names import MAX_TENSORS, CallSiteName, SignatureName
from otel_torchdist.model.operations import Operation, Splits
from otel_torchdist.model.text import item_bytes
from otel_torchdist.sources.flight.dump import (
    GLOO,
    FlightDump,
    FlightEntry,
    dtype_name,
    is_described_by_outputs,
    parse_profiling_name,
)
from otel_torchdist.sources.flight.groups import RecordedGroups
from otel_torchdist.sources.flight.numbering import EntryLane, NumberedEntry, is_open

UNKNOWN_PEERS_TAG: Final = 1
"""Tag of sends and receives without a recorded peer, to separate them from the group's collectives."""
UNKNOWN_GROUP: Final = ""
_REDUCING: Final = operations_where(lambda row: row.family.reduces)


def operation_view(
    dump: FlightDump,
    call: NumberedEntry,
    group: GroupView | None,
    retired_is_ended: bool,
    waits: bool = False,
) -> OperationView:
    """Convert one entry into an operation.

    Args:
        dump: The dump that contains it.
        call: The entry.
        group: Its group; None if unknown.
        retired_is_ended: Whether a retired call has ended; see `numbering.retired_means_ended`.
        waits: Whether the rank waits in this call.
    """
    entry, name = call.entry, parse_profiling_name(call.entry.profiling_name)
    channel = channel_of(call.lane, group)
    is_done = not is_open(entry, retired_is_ended)
    # Only operations on a device are queued. gloo has no device stream.
    on_device = Flag.ON_DEVICE if name.library != GLOO else Flag(0)
    splits = splits_of(entry, name.operation)
    flags = on_device | (Flag.POINT_TO_POINT if not call.lane.is_collective else Flag(0))
    flags |= Flag.UNEVEN if splits is not None else Flag(0)
    started_ns = entry.started_ns
    if waits and started_ns is None:
        started_ns = entry.created_ns  # starts are recorded only with `TORCH_NCCL_ENABLE_TIMING`
    ended_ns = (entry.completed_ns or entry.created_ns) if is_done else None
    peer = -1
    if channel.is_point_to_point:
        peer = channel.source if channel.destination == dump.rank else channel.destination
    signature = signature_of(entry)
    record = Operation(
        number=entry.record_id,
        kind=RecordKind.OPERATION,
        entered_ns=entry.created_ns,
        step=0,
        sequence=call.sequence,
        message_bytes=0 if name.operation == RECV else _bytes_of(signature),  # a receiver contributes nothing
        group=0,
        signature=0,
        call_site=0,
        label=0,
        peer=peer,
        tag=channel.tag,
        thread=int(entry.thread) if entry.thread.isdecimal() and len(entry.thread) < 20 else 0,
        flags=flags,
        # The recorder does not record returns. The thread of a waiting call may still be in it.
        returned_ns=None if waits else entry.created_ns,
        started_ns=started_ns,
        started_how=How.WATCHDOG if entry.started_ns is not None else None,
        completed_ns=ended_ns,
        how=None if ended_ns is None else (How.WATCHDOG if entry.completed_ns is not None else How.UNTRACKED),
        splits=splits,
    )
    return OperationView(
        record=record,
        name=name.operation,
        operation_id=OperationId(channel, call.sequence),
        group=group,
        signature=signature,
        call_site=call_site_of(entry.frames),
        label="",
        failure="",
        waiting_since_ns=record.started_ns if waits else None,
    )


def channel_of(lane: EntryLane, group: GroupView | None) -> Channel:
    """Return the channel of a lane, with global ranks."""
    key = group.key if group is not None else UNKNOWN_GROUP
    if lane.is_collective:
        return Channel(RecordKind.OPERATION, key)
    if lane.has_unknown_peers or group is None:
        return Channel(RecordKind.OPERATION, key, tag=UNKNOWN_PEERS_TAG)
    ranks = group.name.ranks
    if max(lane.source, lane.destination) >= len(ranks):
        return Channel(RecordKind.OPERATION, key, tag=UNKNOWN_PEERS_TAG)
    return Channel(RecordKind.OPERATION, key, ranks[lane.source], ranks[lane.destination], NO_TAG)


def group_of(groups: RecordedGroups, dump: FlightDump, call: NumberedEntry) -> GroupView | None:
    """Return the group of an entry, marked as not aligned if its numbers are not comparable between ranks."""
    return groups.group(dump, call.lane.group, call.aligned)


def arrival_of(view: OperationView) -> Arrival:
    """Return the call as an arrival, to compare with other ranks."""
    return Arrival(view.operation_id.sequence, view.signature, ANY_RANK)


def signature_of(entry: FlightEntry) -> SignatureName:
    """Return operation and tensors of an entry. The reduce op is not recorded."""
    return _signature(
        parse_profiling_name(entry.profiling_name).operation,
        entry.input_sizes,
        entry.input_dtypes,
        entry.output_sizes,
        entry.output_dtypes,
    )


@lru_cache(maxsize=16_384)
def _signature(
    operation: str,
    input_sizes: tuple[tuple[int, ...], ...],
    input_dtypes: tuple[str, ...],
    output_sizes: tuple[tuple[int, ...], ...],
    output_dtypes: tuple[str, ...],
) -> SignatureName:
    if is_described_by_outputs(operation):
        input_sizes, input_dtypes = output_sizes, output_dtypes
    if operation == BARRIER:  # NCCL's barrier reduces an internal tensor
        input_sizes, input_dtypes = (), ()
    dtypes = tuple(dtype_name(dtype) for dtype in input_dtypes[:MAX_TENSORS])
    return SignatureName(
        operation=operation,
        reduce_op=UNREAD if operation in _REDUCING else "",
        shapes=input_sizes[:MAX_TENSORS],
        dtypes=dtypes[:1] if len(set(dtypes)) == 1 else dtypes,
        device="",
        tensors=len(input_sizes),
    )


@lru_cache(maxsize=16_384)
def _bytes_of(signature: SignatureName) -> int:
    """Return the bytes of the tensors in a signature."""
    dtypes = signature.dtypes
    if len(dtypes) == 1:
        dtypes *= len(signature.shapes)
    return sum(math.prod(shape) * item_bytes(dtype) for shape, dtype in zip(signature.shapes, dtypes, strict=False))


def splits_of(entry: FlightEntry, operation: str) -> Splits | None:
    """Return the splits of an uneven `all_to_all`; None if its recorded sizes are equal.

    For a single tensor, the recorder has only the total sizes, not the parts.
    """
    if operation not in EXCHANGES:
        return None
    sent = _tensor_bytes(entry.input_sizes, entry.input_dtypes)
    received = sum(_tensor_bytes(entry.output_sizes, entry.output_dtypes))
    if not sent or not entry.output_sizes or (sum(sent) == received and len(set(sent)) == 1):
        return None
    is_list = len(sent) > 1
    return Splits(sent=sent if is_list else (), largest=max(sent) if is_list else 0, received=received)


def _tensor_bytes(sizes: tuple[tuple[int, ...], ...], dtypes: tuple[str, ...]) -> tuple[int, ...]:
    names = dtypes * len(sizes) if len(dtypes) == 1 else dtypes
    return tuple(math.prod(size) * item_bytes(dtype_name(name)) for size, name in zip(sizes, names, strict=False))


@lru_cache(maxsize=16_384)
def call_site_of(frames: tuple[CallSiteName, ...]) -> CallSiteName | None:
    """Return the innermost frame of the user's code; None if stacks were not recorded."""
    return user_frame(frames)
