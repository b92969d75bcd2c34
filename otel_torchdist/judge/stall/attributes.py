"""Span attributes shared by stalls and findings: operation position, group, line of code, mismatch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from otel_torchdist.judge.world.mismatch import Mismatch
from otel_torchdist.model.calls import GroupView, OperationId
from otel_torchdist.model.names import CallSiteName
from otel_torchdist.model.reports.finding import AttributeValue
from otel_torchdist.model.text import compress_ranks
from otel_torchdist.telemetry import semconv

Attributes = dict[str, AttributeValue]

MAX_LISTED: Final = 64
"""Upper bound on the entries of a list. Each marker repeats the verdict, so unbounded lists would grow with the square
of the number of ranks."""


def listed(entries: Sequence[str]) -> list[str]:
    """Return the first `MAX_LISTED` entries, and an entry with the number of the others."""
    others = len(entries) - MAX_LISTED
    return [*entries] if others <= 0 else [*entries[:MAX_LISTED], f"{others} more"]


def of_mismatch(mismatch: Mismatch) -> Attributes:
    """Return the attributes of calls that do not match."""
    return {
        semconv.MISMATCH_FIELD: mismatch.field.value,
        semconv.MISMATCH_SEQUENCE: mismatch.operation_id.sequence,
        semconv.MISMATCH_VALUES: listed([f"{compress_ranks(ranks)}: {text}" for text, ranks in mismatch.parties]),
    }


def of_operation_id(operation: str, group: GroupView | None, operation_id: OperationId) -> Attributes:
    """Return the attributes of an operation and its position in its group."""
    attributes: Attributes = {semconv.OPERATION: operation, semconv.SEQUENCE: operation_id.sequence}
    if operation_id.channel.is_point_to_point:
        attributes[semconv.TAG] = operation_id.channel.tag
    if group is None:
        return attributes
    attributes |= of_group(group)
    if not group.name.aligned:
        attributes[semconv.SEQUENCE_ALIGNED] = False
    return attributes


def of_group(group: GroupView) -> Attributes:
    """Return the attributes of a process group."""
    attributes: Attributes = {semconv.GROUP_HASH: group.key, semconv.GROUP_SIZE: len(group.members)}
    if group.name.description:
        attributes[semconv.GROUP_DESCRIPTION] = group.name.description
    if group.name.dimensions:
        attributes[semconv.MESH_DIMENSIONS] = list(group.name.dimensions)
    return attributes


def of_frame(frame: CallSiteName | None) -> Attributes:
    """Return the attributes of a line of code; empty if it is unknown."""
    if frame is None:
        return {}
    return {
        semconv.CODE_FUNCTION: frame.function,
        semconv.CODE_FILE: frame.file,
        semconv.CODE_LINE: frame.line,
    }
