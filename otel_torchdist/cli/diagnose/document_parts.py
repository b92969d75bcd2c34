"""Parts of a diagnosis as JSON that do not depend on where its records come from."""

from __future__ import annotations

from typing import Any

from otel_torchdist.cli.diagnose.operation_lines import Timeline
from otel_torchdist.cli.text import iso_time
from otel_torchdist.tape.records import CallSiteName
from otel_torchdist.verdict.first_death import FirstDeath
from otel_torchdist.verdict.model import Link, Verdict
from otel_torchdist.world.calls import GroupView, OperationView
from otel_torchdist.world.mismatch import Mismatch

Json = dict[str, Any]


def verdict_document(timeline: Timeline, verdict: Verdict, age_ns: int, text: str, source: str) -> Json:
    """A verdict.

    Args:
        timeline: The moment that it is about.
        verdict: The verdict.
        age_ns: How long the first rank had waited.
        text: The verdict as a sentence.
        source: What it is based on.
    """
    return {
        "kind": verdict.kind.value,
        "ranks": list(verdict.ranks),
        "waiting": list(verdict.waiting),
        "operation": verdict.operation,
        "sequence": verdict.operation_id.sequence,
        "group": _group(verdict.group),
        "label": verdict.label or None,
        "since": time_document(timeline, verdict.since_ns),
        "age_s": rounded(age_ns / 1e9),
        "doubt": verdict.doubt.value if verdict.doubt is not None else None,
        "reporting": verdict.reporting,
        "members": verdict.members,
        "sentence": text,
        "mismatch": _mismatch(verdict.mismatch) if verdict.mismatch is not None else None,
        "circle": [_link(link) for link in verdict.circle] or None,
        "death": _first_death(verdict.first) if verdict.first is not None else None,
        "hung_s": None,
        "source": source,
    }


def _first_death(first: FirstDeath) -> Json:
    lead_s = None if first.lead_ns is None else rounded(first.lead_ns / 1e9)
    return {"order": "inferred" if first.is_inferred else "seen", "lead_s": lead_s, "is_silence": first.is_silence}


def _mismatch(mismatch: Mismatch) -> Json:
    return {
        "field": mismatch.field.value,
        "sequence": mismatch.operation_id.sequence,
        "parties": [{"value": value, "ranks": list(ranks)} for value, ranks in mismatch.parties],
    }


def _link(link: Link) -> Json:
    return {
        "rank": link.rank,
        "operation": link.operation,
        "sequence": link.operation_id.sequence,
        "group": _group(link.group),
        "label": link.label or None,
    }


def operation_document(timeline: Timeline, operation: OperationView) -> Json:
    """An operation of a rank."""
    record, channel = operation.record, operation.operation_id.channel
    since_ns = operation.waiting_since_ns or record.entered_ns
    peers = (
        {channel.source, channel.destination}
        if channel.is_point_to_point
        else operation.group and operation.group.members
    )
    return {
        "operation": operation.name,
        "sequence": operation.operation_id.sequence,
        "group": _group(operation.group),
        "label": operation.label or None,
        "peers": sorted(rank for rank in peers if rank >= 0) if peers is not None else None,
        "tag": channel.tag if channel.is_point_to_point and channel.tag >= 0 else None,
        "entered": time_document(timeline, record.entered_ns),
        "age_s": rounded(timeline.before_s(since_ns)),
        "waits": operation.waiting_since_ns is not None,
        "ended": time_document(timeline, record.completed_ns) if record.completed_ns is not None else None,
        "exception": operation.failure or None,
        "call_site": call_site_document(operation.call_site),
        "call_path": list(operation.path),
    }


def _group(group: GroupView | None) -> Json | None:
    return {"key": group.key, "name": group.label} if group is not None else None


def call_site_document(frame: CallSiteName | None) -> Json | None:
    """A line of code; None if it is not known."""
    return {"function": frame.function, "file": frame.file, "line": frame.line} if frame is not None else None


def time_document(timeline: Timeline, monotonic_ns: int) -> str:
    """A time, in UTC."""
    return iso_time(timeline.wall_ns(monotonic_ns))


def rounded(seconds: float) -> float:
    """Seconds to the millisecond."""
    return round(seconds, 3)
