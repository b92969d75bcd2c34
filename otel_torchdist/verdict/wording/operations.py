"""Operations, in words."""

from __future__ import annotations

from otel_torchdist.model.calls import ANY_RANK, Channel, GroupView, OperationId, OperationView
from otel_torchdist.model.kinds import RecordKind


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
    details += _message(channel)
    if channel.kind is not RecordKind.RENDEZVOUS:
        details.append(f"sequence {operation_id.sequence}")
    details.append(group.title if group is not None else "unknown group")
    return f"{operation} ({', '.join(details)})"


def describe_instead(operation: OperationView) -> str:
    """What a rank is in that does not match: `send (from rank 0 to rank 1, tag 12)`, `all_reduce (mesh_tp)`."""
    title = operation.group.title if operation.group is not None else "unknown group"
    return f"{operation.name} ({', '.join(_message(operation.operation_id.channel) or [title])})"


def _message(channel: Channel) -> list[str]:
    if not channel.is_point_to_point:
        return []
    source = "any rank" if channel.source == ANY_RANK else f"rank {channel.source}"
    ends = f"from {source} to rank {channel.destination}"
    return [ends, f"tag {channel.tag}"] if channel.tag >= 0 else [ends]
