"""Operations, in words."""

from __future__ import annotations

from otel_torchdist.tape.layout import RecordKind
from otel_torchdist.world.calls import ANY_RANK, GroupView, OperationId


def describe_operation(operation: str, group: GroupView | None, operation_id: OperationId, label: str = "") -> str:
    """An operation as users name it: `all_reduce (sequence 118, default_pg)`, `all_gather (FSDP layers.3, …)`.

    Args:
        operation: Its name.
        group: Its group; None if it is not known.
        operation_id: Its id.
        label: What it is for; see `OperationView`.
    """
    channel = operation_id.channel
    details: list[str] = [label] if label else []
    if channel.is_point_to_point:
        source = "any rank" if channel.source == ANY_RANK else f"rank {channel.source}"
        details.append(f"from {source} to rank {channel.destination}")
        if channel.tag >= 0:
            details.append(f"tag {channel.tag}")
    if channel.kind is not RecordKind.RENDEZVOUS:
        details.append(f"sequence {operation_id.sequence}")
    details.append(group.title if group is not None else "unknown group")
    return f"{operation} ({', '.join(details)})"
