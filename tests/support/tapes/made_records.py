"""Records of calls as a tape or an archive would have them, made up: a test names only what it is about."""

from __future__ import annotations

from typing import Any

from otel_torchdist.model.calls import Channel, GroupView, OperationId, OperationView
from otel_torchdist.model.kinds import Flag, RecordKind
from otel_torchdist.model.names import CallSiteName, SignatureName
from otel_torchdist.model.operations import Operation


def made_operation(number: int, entered_ns: int, sequence: int = 1, **fields: Any) -> Operation:
    """The record of an operation; it is open unless `completed_ns` and `how` are among its fields."""
    ordinary = {"step": 0, "message_bytes": 0, "group": 1, "signature": 1, "call_site": 1, "label": 0, "peer": -1}
    ordinary |= {"tag": 0, "thread": 1, "flags": Flag(0), "kind": RecordKind.OPERATION}
    return Operation(number=number, entered_ns=entered_ns, sequence=sequence, **{**ordinary, **fields})


def made_view(
    record: Operation,
    name: str,
    channel: Channel,
    group: GroupView,
    signature: SignatureName | None = None,
    call_site: CallSiteName | None = None,
) -> OperationView:
    """An operation with its names resolved; being open is no evidence that its rank waits."""
    operation_id = OperationId(channel, record.sequence)
    return OperationView(record, name, operation_id, group, signature, call_site, "", "", None)
