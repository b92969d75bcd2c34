"""How ranks, operations and places in the code are named in sentences."""

from __future__ import annotations

from pathlib import PurePath

from otel_torchdist.tape.layout import RecordKind
from otel_torchdist.tape.records import CallSiteName
from otel_torchdist.world.model import ANY_RANK, GroupView, OperationId
from otel_torchdist.world.places import Place, Source


def describe_operation(operation: str, group: GroupView | None, operation_id: OperationId) -> str:
    """An operation as users name it: `all_reduce (sequence 118, default_pg)`."""
    channel = operation_id.channel
    details: list[str] = []
    if channel.is_point_to_point:
        source = "any rank" if channel.source == ANY_RANK else f"rank {channel.source}"
        details.append(f"from {source} to rank {channel.destination}")
        details.append(f"tag {channel.tag}")
    if channel.kind is not RecordKind.RENDEZVOUS:
        details.append(f"sequence {operation_id.sequence}")
    details.append(group.label if group is not None else "unknown group")
    return f"{operation} ({', '.join(details)})"


def describe_place(place: Place, subject: str) -> str:
    """Where `subject` ("rank 2", "it") is, as a clause; '' when nothing is known."""
    line = "" if place.frame is None else describe_frame(place.frame)
    clauses = {
        Source.STACK: f"{subject} is in {line}" if line else "",
        Source.SIGNAL: f"{subject} is in {line} (stack taken by a signal while the GIL was held)" if line else "",
        Source.OPEN_OPERATION: f"{subject} is in {place.operation}" + (f", called in {line}" if line else ""),
        Source.LAST_OPERATION: f"{subject} was last in {place.operation}" + (f", called in {line}" if line else ""),
        Source.NOTHING: "",
    }
    clause = clauses[place.source]
    if place.frozen_for_ns is None:
        return clause
    frozen = f"its Python threads have not run for {place.frozen_for_ns / 1e9:.1f} s"
    return f"{clause}, and {frozen}" if clause else f"{subject} does not answer: {frozen}"


def describe_frame(frame: CallSiteName) -> str:
    """`load_batch at train.py:57`."""
    return f"{frame.function} at {PurePath(frame.file).name}:{frame.line}"
