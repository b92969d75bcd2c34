"""How long calls took on their device, where a recorder has timed them.

With `TORCH_NCCL_ENABLE_TIMING` an entry has the time between the two events around the call. Its begin and end are
otherwise only known from the watchdog, which sees them late.
"""

from __future__ import annotations

import dataclasses
import math

import msgspec

from otel_torchdist.flight.dump import FlightDump
from otel_torchdist.model.calls import OperationView
from otel_torchdist.model.history import RankHistory
from otel_torchdist.model.kinds import How


def with_durations(history: RankHistory, dump: FlightDump) -> RankHistory:
    """Return a history in which calls that were timed on their device have lasted that long.

    Args:
        history: Of a dump; its numbers are those of the records.
        dump: That dump.
    """
    timed = {
        entry.record_id: round(entry.duration_ms * 1e6)
        for entry in dump.entries
        if entry.duration_ms is not None and math.isfinite(entry.duration_ms) and entry.duration_ms >= 0
    }
    if not timed:
        return history
    operations = tuple(_lasting(view, timed.get(view.record.number)) for view in history.operations)
    return dataclasses.replace(history, operations=operations)


def _lasting(view: OperationView, duration_ns: int | None) -> OperationView:
    record = view.record
    if duration_ns is None or record.completed_ns is None:
        return view
    started_ns = record.completed_ns - duration_ns
    record = msgspec.structs.replace(record, started_ns=started_ns, started_how=How.EVENT, how=How.EVENT)
    return dataclasses.replace(view, record=record)
