"""Writes a dump as a pickle, in the format of PyTorch's flight recorder."""

from __future__ import annotations

import pickle
from typing import Any, Final

from otel_torchdist.model.names import CallSiteName
from otel_torchdist.sources.flight.dump import FlightDump, FlightEntry, FlightGroup, GroupStatus

PREFIX: Final = "comm_lib_trace_rank_"
"""Prefix of torch's own dump files; the rank follows."""
MARK: Final = "otel-torchdist"
_MARK_KEY: Final = "exported_by"
_PROTOCOL: Final = 2
"""Protocol of torch's own dumps."""
_MARK_WITHIN: Final = 256


def pickled(dump: FlightDump) -> bytes:
    """Return a dump as a pickle, with two keys that torch does not write: `exported_by` and `until_ns`."""
    document: dict[str, Any] = {
        _MARK_KEY: MARK,
        "version": ".".join(map(str, dump.version)),
        "comm_lib_version": dump.library_version,
        "pg_config": {name: _group(group) for name, group in dump.groups.items()},
        "pg_status": {str(number): _status(status) for number, status in dump.statuses.items()},
        "entries": [_entry(entry) for entry in dump.entries],
    }
    if dump.until_ns is not None:
        document["until_ns"] = dump.until_ns
    return pickle.dumps(document, protocol=_PROTOCOL)


def is_marked(start: bytes) -> bool:
    """Return whether a file that begins with `start` was written by `pickled`."""
    return MARK.encode() in start[:_MARK_WITHIN] and _MARK_KEY.encode() in start[:_MARK_WITHIN]


def _group(group: FlightGroup) -> dict[str, str]:
    return {"name": group.name, "desc": group.description, "ranks": str(list(group.ranks))}


def _status(status: GroupStatus) -> dict[str, int]:
    return {
        "last_enqueued_collective": status.enqueued,
        "last_started_collective": status.started,
        "last_completed_collective": status.completed,
    }


def _entry(entry: FlightEntry) -> dict[str, Any]:
    document: dict[str, Any] = {
        "record_id": entry.record_id,
        "pg_id": entry.pg_id,
        "process_group": (entry.group, entry.description),
        "collective_seq_id": entry.sequence,
        "p2p_seq_id": entry.p2p_sequence,
        "op_id": entry.operation_number,
        "profiling_name": entry.profiling_name,
        "time_created_ns": entry.created_ns,
        "input_sizes": list(map(list, entry.input_sizes)),
        "input_dtypes": list(entry.input_dtypes),
        "output_sizes": list(map(list, entry.output_sizes)),
        "output_dtypes": list(entry.output_dtypes),
        "state": entry.state.value,
        "time_discovered_started_ns": entry.started_ns,
        "time_discovered_completed_ns": entry.completed_ns,
        "retired": entry.retired,
        "is_p2p": entry.is_p2p,
        "thread_id": entry.thread,
        "thread_name": "",
        "frames": list(map(_frame, entry.frames)),
    }
    if entry.duration_ms is not None:
        document["duration_ms"] = entry.duration_ms
    if entry.timeout_ms is not None:
        document["timeout_ms"] = entry.timeout_ms
    return document


def _frame(site: CallSiteName) -> dict[str, str | int]:
    return {"name": site.function, "filename": site.file, "line": site.line}
