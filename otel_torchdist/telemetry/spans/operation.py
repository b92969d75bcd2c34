"""Turns operations of the tape into finished spans."""

from __future__ import annotations

import math
from typing import Final

from opentelemetry.util.types import AttributeValue

from otel_torchdist.model.ids import operation_span_id
from otel_torchdist.model.kinds import Flag, How, Phase
from otel_torchdist.model.names import OTHER, ROOT_UNIT, CallSiteName, GroupName, LabelKind, LabelName, SignatureName
from otel_torchdist.model.numerics import Numerics
from otel_torchdist.model.operations import Operation
from otel_torchdist.model.reports.incident import LinkTarget
from otel_torchdist.tape.identity import TapeIdentity
from otel_torchdist.tape.names.reader import NamesReader, shown_path
from otel_torchdist.tape.status import WallClock
from otel_torchdist.telemetry import semconv
from otel_torchdist.telemetry.spans.finished_spans import FinishedSpan


def _resolution_s(how: How) -> float | None:
    """Return an upper bound on the seconds from an operation's end to its recorded end; None if unknown."""
    match how:
        case How.CALL | How.WAIT | How.CALLBACK | How.FAILED:
            return 0.0
        case How.EVENT:  # a microsecond on the device's clock, plus the error of its conversion to the host's clock
            return 0.001
        case How.POLL:  # `capture/core/rank_thread.py` polls every 20 to 60 ms
            return 0.06
        case How.WATCHDOG:  # the watchdog runs every 100 ms, and we poll it every 20 ms
            return 0.12
        case How.UNTRACKED | How.ABANDONED:
            return None


_RESOLUTION_S: Final = {how: resolution for how in How if (resolution := _resolution_s(how)) is not None}
_PHASES: Final = {phase: phase.name.lower() for phase in Phase if phase is not Phase.UNKNOWN}
_HOW: Final = {None: "unknown"} | {how: how.name.lower() for how in How}
# Precomputed for the cost of a record: operators of IntFlag and names of enum members run Python code.
_ON_DEVICE: Final = int(Flag.ON_DEVICE)
_POINT_TO_POINT: Final = int(Flag.POINT_TO_POINT)


def attributes_of_names(
    signature: SignatureName | None,
    group: GroupName | None,
    call_site: CallSiteName | None,
    label: str,
    path: tuple[str, ...] = (),
    path_varies: bool = False,
) -> dict[str, AttributeValue]:
    """Return the attributes shared by all calls with the same names.

    Args:
        signature: Their signature.
        group: Their process group.
        call_site: Their call site.
        label: Text of their label, see `Names.label`; '' without one.
        path: The frames that lead to the call site; see `shown_path`.
        path_varies: Whether other paths also lead there.
    """
    attributes: dict[str, AttributeValue] = {semconv.OPERATION: semconv.OTHER}
    if signature:
        attributes |= _of_signature(signature)
    if group:
        attributes |= _of_group(group)
    if call_site:
        attributes[semconv.CODE_FUNCTION] = call_site.function
        attributes[semconv.CODE_FILE] = call_site.file
        attributes[semconv.CODE_LINE] = call_site.line
    if label:
        attributes[semconv.CALLER] = label
    if path:
        attributes[semconv.CALLER_PATH] = list(path)
    if path_varies:
        attributes[semconv.CALLER_PATH_VARIES] = True
    return attributes


def _of_signature(signature: SignatureName) -> dict[str, AttributeValue]:
    optional: dict[str, AttributeValue] = {
        semconv.REDUCE_OP: signature.reduce_op,
        semconv.TENSOR_SHAPES: ["x".join(map(str, shape)) or "scalar" for shape in signature.shapes],
        semconv.TENSOR_DTYPES: list(signature.dtypes),
        semconv.TENSOR_DEVICE: signature.device,
    }
    attributes: dict[str, AttributeValue] = {
        semconv.OPERATION: signature.operation,
        semconv.TENSOR_COUNT: signature.tensors,
    }
    return attributes | {name: value for name, value in optional.items() if value}


def _of_group(group: GroupName) -> dict[str, AttributeValue]:
    attributes: dict[str, AttributeValue] = {
        semconv.GROUP_HASH: group.key,
        semconv.GROUP_SIZE: len(group.ranks),
    }
    if group.description:
        attributes[semconv.GROUP_DESCRIPTION] = group.description
    if group.dimensions:
        attributes[semconv.MESH_DIMENSIONS] = list(group.dimensions)
    if not group.aligned:
        attributes[semconv.SEQUENCE_ALIGNED] = False
    return attributes


def attributes_of_label(label: LabelName) -> dict[str, AttributeValue]:
    """Return the attributes shared by all calls with the same label. The bucket or microbatch is not among them."""
    match label.kind:
        case LabelKind.FSDP:
            return {semconv.FSDP_UNIT: label.unit or ROOT_UNIT}
        case LabelKind.DDP:
            return {}
        case LabelKind.PIPELINE:
            return {semconv.PIPELINE_STAGE: label.stage, semconv.PIPELINE_DIRECTION: label.direction}


def attributes_of_piece(label: LabelName, piece: int) -> dict[str, AttributeValue]:
    """Return the attribute with the bucket or microbatch of one call.

    Args:
        label: The call's label.
        piece: Number of the bucket or microbatch, from 1; the attribute counts from 0.
    """
    name = semconv.DDP_BUCKET if label.kind is LabelKind.DDP else semconv.PIPELINE_MICROBATCH
    return {name: piece - 1}


def attributes_of_record(operation: Operation) -> dict[str, AttributeValue]:
    """Return the attributes of a single call: position, size, phase, completion, and times on a device."""
    attributes: dict[str, AttributeValue] = {
        semconv.SEQUENCE: operation.sequence,
        semconv.MESSAGE_SIZE: operation.message_bytes,
        semconv.COMPLETION: _HOW[operation.how],
    }
    flags = int(operation.flags)
    if operation.how and operation.how in _RESOLUTION_S:
        attributes[semconv.COMPLETION_RESOLUTION] = _RESOLUTION_S[operation.how]
    if flags & _ON_DEVICE:
        attributes.update(_device_times(operation))
    if operation.peer >= 0:
        attributes[semconv.PEER] = operation.peer
    if flags & _POINT_TO_POINT:
        attributes[semconv.TAG] = operation.tag
    if operation.phase in _PHASES:
        attributes[semconv.PHASE] = _PHASES[operation.phase]
    if operation.numerics is not None:
        attributes.update(_values(operation.numerics))
    if operation.splits is not None:
        attributes[semconv.MESSAGE_RECEIVED] = operation.splits.received
        if operation.splits.largest:
            attributes[semconv.MESSAGE_LARGEST_PART] = operation.splits.largest
    return attributes


def _values(numerics: Numerics) -> dict[str, AttributeValue]:
    """Return the attributes of an operation's numerics. Non-finite numbers are left out."""
    numbers: dict[str, float | None] = {
        semconv.INPUT_MIN: numerics.smallest,
        semconv.INPUT_MAX: numerics.largest,
        semconv.INPUT_ABSMAX: numerics.absmax,
        semconv.INPUT_HEADROOM: numerics.headroom,
        semconv.INPUT_MEAN: numerics.mean,
        semconv.INPUT_NORM: numerics.norm,
        semconv.INPUT_ZERO_SHARE: numerics.zero_share,
        semconv.INPUT_SUBNORMAL_SHARE: numerics.subnormal_share,
        semconv.INPUT_SATURATED_SHARE: numerics.saturated_share,
    }
    values: dict[str, AttributeValue] = {
        name: value for name, value in numbers.items() if value is not None and math.isfinite(value)
    }
    if numerics.elements and numerics.is_finite is not None:
        values[semconv.INPUT_NON_FINITE] = not numerics.is_finite
    if numerics.unseen is not None:
        values[semconv.UNSEEN_REASON] = numerics.unseen.label
    if numerics.input_checksum is not None:
        values[semconv.INPUT_CHECKSUM] = f"{numerics.input_checksum:012x}"
    if numerics.output_checksum is not None:
        values[semconv.OUTPUT_CHECKSUM] = f"{numerics.output_checksum:012x}"
    return values


def _device_times(operation: Operation) -> dict[str, AttributeValue]:
    """Return the time of an operation in the device's queue and on the device; empty if unknown."""
    started_ns, how = operation.started_ns, operation.started_how
    if started_ns is None or how is None or how not in _RESOLUTION_S:
        return {}
    times: dict[str, AttributeValue] = {
        semconv.DEVICE_QUEUE_DURATION: (started_ns - operation.entered_ns) / 1e9,
        semconv.DEVICE_START_RESOLUTION: _RESOLUTION_S[how],
    }
    if operation.completed_ns is not None and operation.how in _RESOLUTION_S:
        times[semconv.DEVICE_DURATION] = max(operation.completed_ns - started_ns, 0) / 1e9
    return times


MIN_DURATION_NS: Final = 1_000
"""Shortest span: viewers show microseconds, and no bar for a duration of 0."""

MAX_TEMPLATES: Final = 4_096
_ASYNC: Final = int(Flag.ASYNC)
_SYNCHRONIZED: Final = int(Flag.ON_DEVICE | Flag.POINT_TO_POINT | Flag.COALESCED)
"""Devices are synchronized around an operation if `ON_DEVICE` is the only one of these flags that is set."""


class OperationSpans:
    """Builds the spans of one tape's operations."""

    def __init__(self, identity: TapeIdentity, names: NamesReader, clock: WallClock) -> None:
        """Look up names in `names`, and convert times with `clock`."""
        self._identity = identity
        self._names = names
        self._clock = clock
        self._run: AttributeValue = ""
        self._renamed = names.renamed
        self._templates: dict[tuple[int, int, int, int], dict[str, AttributeValue]] = {}

    def span(
        self, operation: Operation, anchor: FinishedSpan, incident: tuple[LinkTarget, ...] | None, open_because: str
    ) -> FinishedSpan:
        """Build the span of an operation that has ended, or was still open at the end of its tape.

        Args:
            operation: The operation, with `completed_ns`; `how` is None if it was still open.
            anchor: Its parent span.
            incident: Links to the incident if the operation was reported as stalled; None otherwise.
            open_because: Reason for a missing end, as a clause after "when": `the process ended`.
        """
        self._drop_stale_templates(anchor.attributes[semconv.RUN])
        attributes = self._attributes(operation)
        if incident is not None:
            attributes[semconv.STALLED] = True
        start_ns = self._clock.wall_ns(operation.entered_ns)
        end_ns = start_ns + (operation.completed_ns or operation.entered_ns) - operation.entered_ns
        return FinishedSpan(
            name=str(attributes[semconv.OPERATION]),
            trace_id=anchor.trace_id,
            span_id=operation_span_id(self._identity.nonce, operation.number),
            parent_id=anchor.span_id,
            start_ns=start_ns,
            end_ns=max(end_ns, start_ns + MIN_DURATION_NS),
            attributes=attributes,
            error=_error(operation, attributes, open_because),
            links=incident or (),
        )

    def _drop_stale_templates(self, run: AttributeValue) -> None:
        """Drop cached attributes that contain an outdated run id (unsettled ids change) or name of a group."""
        renamed = self._names.renamed  # counts groups renamed by a device mesh
        if run != self._run or renamed != self._renamed:
            self._run, self._renamed = run, renamed
            self._templates.clear()

    def _attributes(self, operation: Operation) -> dict[str, AttributeValue]:
        key = (operation.group, operation.signature, operation.call_site, operation.label)
        template = self._templates.get(key)
        if template is None:
            if len(self._templates) == MAX_TEMPLATES:
                self._templates.clear()
            template = self._templates[key] = self._template(operation)
        attributes = template | attributes_of_record(operation)
        if operation.piece:
            label = self._names.label_name(operation.label)
            attributes |= attributes_of_piece(label, operation.piece) if label is not None else {}
        attributes[semconv.STEP] = operation.step
        attributes[semconv.ASYNC] = bool(int(operation.flags) & _ASYNC)
        attributes[semconv.SYNC_DURATION] = _blocked_ns(operation) / 1e9
        if self._identity.synchronized and int(operation.flags) & _SYNCHRONIZED == _ON_DEVICE:
            attributes[semconv.SYNCHRONIZED] = True
        if operation.how is How.FAILED:
            attributes[semconv.ERROR_TYPE] = self._names.text(operation.failure) or semconv.OTEL_OTHER
        return attributes

    def _template(self, operation: Operation) -> dict[str, AttributeValue]:
        """Return the attributes shared by all operations with the same names."""
        names = self._names
        label_text = names.label(operation.label) if operation.label != OTHER else None
        label_name = names.label_name(operation.label) if operation.label != OTHER else None
        site, signature = operation.call_site, names.signature(operation.signature)
        path = names.call_path(site)
        by_names = attributes_of_names(
            signature,
            names.group(operation.group),
            names.call_site(site),
            label_text or "",
            shown_path(names, site),
            path is not None and path.varies,
        )
        by_label = attributes_of_label(label_name) if label_name is not None else {}
        return {semconv.RANK: self._identity.rank, semconv.RUN: self._run, **by_names, **by_label}


def _blocked_ns(operation: Operation) -> int:
    """Return the time that the calling thread spent inside the call and the first wait.

    A call or wait without a recorded return lasted until the operation ended.
    """
    end_ns = operation.completed_ns or operation.entered_ns
    returned_ns = end_ns if operation.returned_ns is None else operation.returned_ns
    blocked_ns = returned_ns - operation.entered_ns
    if operation.wait_entered_ns is not None:
        wait_returned_ns = end_ns if operation.wait_returned_ns is None else operation.wait_returned_ns
        blocked_ns += max(wait_returned_ns - operation.wait_entered_ns, 0)
    return blocked_ns


def _error(operation: Operation, attributes: dict[str, AttributeValue], open_because: str) -> str | None:
    """Return the span's error if the operation raised an exception, or a thread was still waiting for it."""
    if operation.how is How.FAILED:
        return f"{attributes[semconv.OPERATION]} raised {attributes[semconv.ERROR_TYPE]}"
    if operation.how is not None:
        return None
    if operation.started_ns is None and operation.flags & Flag.ON_DEVICE:
        return None  # the device never started it
    was_waited_for = operation.returned_ns is None or operation.wait_entered_ns is not None
    if operation.flags & (Flag.END_BY_WAIT | Flag.COALESCED) and not was_waited_for:
        return None  # only a wait would show its end, and no thread waited for it
    return f"{attributes[semconv.OPERATION]} was still in progress when {open_because}"
