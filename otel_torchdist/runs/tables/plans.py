"""The columns of operations: the plans of segments and histories as values, in the order of `PLAN`."""

from __future__ import annotations

from array import array
from typing import Any

from otel_torchdist.model.calls import OperationView
from otel_torchdist.model.history import RankHistory
from otel_torchdist.model.kinds import How, Phase, RecordKind
from otel_torchdist.model.names import CallSiteName, SignatureName, unpack_label
from otel_torchdist.model.operations import COARSE, EXACT
from otel_torchdist.sources.archive.format import OPERATION_COLUMNS
from otel_torchdist.tape.names.reader import Names


def values_of(plan: tuple[Any, ...], names: Names) -> tuple[Any, ...]:
    """Return the values of a segment's plan."""
    kind, flags, group_id, signature_id, site_id, label, thread, failure, how, started_how, phase, *_ = plan
    group, signature = names.group(group_id), names.signature(signature_id)
    is_rendezvous = kind == RecordKind.RENDEZVOUS
    operation = signature.operation if signature else "new_group" if is_rendezvous else "operation"
    return (
        "rendezvous" if is_rendezvous else "operation",
        int(flags),
        operation,
        *_tensors(signature),
        group.key if group else None,
        *_site(names.call_site(site_id)),
        names.label(*unpack_label(label)),
        int(thread),
        names.text(failure),
        *_times(how, started_how, phase),
    )


def history_rows(history: RankHistory) -> tuple[dict[str, array[int]], list[tuple[Any, ...]]]:
    """Return the columns of a history's operations, named as in a segment, and the values of its plans."""
    rows = {name: array("q") for name in OPERATION_COLUMNS}
    append = [rows[name].append for name in OPERATION_COLUMNS]
    plans: dict[tuple[Any, ...], int] = {}
    for view in history.operations:
        call = view.record
        entered_ns = call.entered_ns
        plan = plans.setdefault(_values_of_view(view), len(plans))
        times = (call.returned_ns, call.wait_entered_ns, call.wait_returned_ns, call.started_ns, call.completed_ns)
        after = (0 if time_ns is None else time_ns - entered_ns + 1 for time_ns in times)
        row = (call.number, plan, entered_ns, call.step, call.sequence, call.message_bytes, call.peer, call.tag, *after)
        for add, value in zip(append, row, strict=True):
            add(value)
    return rows, list(plans)


def _values_of_view(view: OperationView) -> tuple[Any, ...]:
    call = view.record
    return (
        "rendezvous" if call.kind is RecordKind.RENDEZVOUS else "operation",
        int(call.flags),
        view.name,
        *_tensors(view.signature),
        view.group.key if view.group is not None else None,
        *_site(view.call_site),
        view.label or None,
        call.thread,
        view.failure or None,
        *_times(call.how, call.started_how, call.phase),
    )


def _tensors(signature: SignatureName | None) -> tuple[Any, ...]:
    """Return reduce op, types, shapes and device."""
    if not signature:
        return (None,) * 4
    shapes = " ".join(str(list(shape)) for shape in signature.shapes)
    return signature.reduce_op or None, ", ".join(signature.dtypes), shapes, signature.device


def _site(site: CallSiteName | None) -> tuple[Any, ...]:
    return (site.function, site.file, site.line) if site else (None,) * 3


def _times(how: int | None, started_how: int | None, phase: int) -> tuple[Any, ...]:
    """Return how the end and the start are known, the phase, and whether the operation is timed."""
    return (
        None if how is None else How(how).name.lower(),
        None if started_how is None else How(started_how).name.lower(),
        None if phase == Phase.UNKNOWN else Phase(phase).name.lower(),
        how in EXACT and started_how not in COARSE,  # as `Operation.is_timed`
    )
