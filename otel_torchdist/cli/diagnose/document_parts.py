"""Parts of a diagnosis as JSON that do not depend on where its records come from."""

from __future__ import annotations

from typing import Any

from otel_torchdist.cli.diagnose.operation_lines import Timeline
from otel_torchdist.cli.diagnose.timeout_hints import timeout_hints
from otel_torchdist.cli.output.text import iso_time
from otel_torchdist.model.calls import GroupView, OperationView
from otel_torchdist.model.names import CallSiteName
from otel_torchdist.model.remote_calls import WorkerView
from otel_torchdist.verdict.first_death import FirstDeath
from otel_torchdist.verdict.giving_up import Deadline
from otel_torchdist.verdict.model import Link, Sharing, Verdict
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
        "sharing": _sharing(verdict.sharing) if verdict.sharing is not None else None,
        "death": _first_death(verdict.first) if verdict.first is not None else None,
        "hung_s": None,
        "deadline": _deadline(timeline, verdict.deadline) if verdict.deadline is not None else None,
        "hints": timeout_hints(verdict),
        "source": source,
    }


def _deadline(timeline: Timeline, deadline: Deadline) -> Json:
    return {
        "rank": deadline.rank,
        "backend": deadline.backend,
        "then": deadline.at_timeout.value,
        "timeout_s": rounded(deadline.timeout_ns / 1e9),
        "time": time_document(timeline, deadline.at_ns),
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
        "call": link.remote.text if link.remote is not None else None,
        "call_site": call_site_document(link.call_site),
        "ranks": list(link.ranks),
        "waits_for": link.missing if link.missing >= 0 else None,
    }


def _sharing(sharing: Sharing) -> Json:
    one = sharing.example
    calls = zip(one.operations, one.call_sites, one.callers, strict=True)
    return {
        "ranks": list(sharing.ranks),
        "calls": [
            {"operation": operation, "call_site": call_site_document(site), "caller": caller or None}
            for operation, site, caller in calls
        ],
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


def worker_document(timeline: Timeline, worker: WorkerView) -> Json:
    """A rank as a worker of RPC."""

    def age_s(since_ns: int | None) -> float | None:
        return None if since_ns is None else rounded(timeline.before_s(since_ns))

    calls = [
        {
            "function": call.function,
            "peer": call.peer or None,
            "served": call.is_served,
            "age_s": age_s(call.since_ns),
            "call_site": call_site_document(call.call_site),
        }
        for call in worker.calls
    ]
    joining, leaving = worker.joins_since_ns, worker.leaves_since_ns
    return {"name": worker.name, "joining_s": age_s(joining), "leaving_s": age_s(leaving), "calls": calls}


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
