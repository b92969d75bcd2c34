"""Turns one operation of the tape into a finished span."""

from __future__ import annotations

from typing import Final

from opentelemetry.util.types import AttributeValue

from otel_torchdist import semconv
from otel_torchdist.model.incident import LinkTarget
from otel_torchdist.model.kinds import Flag, How
from otel_torchdist.model.names import OTHER
from otel_torchdist.model.operations import Operation
from otel_torchdist.naming import operation_span_id
from otel_torchdist.tape.identity import TapeIdentity
from otel_torchdist.tape.names.reader import NamesReader, shown_path
from otel_torchdist.tape.status import WallClock
from otel_torchdist.telemetry.spans.call_attributes import of_label, of_names, of_piece, of_record
from otel_torchdist.telemetry.spans.model import FinishedSpan

MIN_DURATION_NS: Final = 1_000
"""Viewers show microseconds, and none of them shows a bar without length."""

MAX_TEMPLATES: Final = 4_096
_ASYNC: Final = int(Flag.ASYNC)
_ON_DEVICE: Final = int(Flag.ON_DEVICE)
_SYNCHRONIZED: Final = int(Flag.ON_DEVICE | Flag.POINT_TO_POINT | Flag.COALESCED)
"""Devices are synchronised around an operation if the first of these flags alone is set."""
UNKNOWN_ERROR: Final = "_OTHER"
"""OpenTelemetry's `error.type` for an error of unknown type."""


class OperationSpans:
    """Makes the spans of one tape's operations."""

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
        """Build the span of an operation that has ended, or that was still open when its tape was over.

        Args:
            operation: Has `completed_ns`; `how` is None if it was still open.
            anchor: Its parent span.
            incident: Links to the incident if the operation was reported as stalled; None for others.
            open_because: Why an operation without an end has none, as the end of a sentence.
        """
        self._take_run(anchor.attributes[semconv.RUN])
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

    def _take_run(self, run: AttributeValue) -> None:
        """Drop the templates if the run changes: they name it for searches, and a provisional id may still change."""
        renamed = self._names.renamed  # a group has got the name of a mesh's dimension
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
        attributes = template | of_record(operation)
        if operation.piece:
            label = self._names.label_name(operation.label)
            attributes |= of_piece(label, operation.piece) if label is not None else {}
        attributes[semconv.STEP] = operation.step
        attributes[semconv.ASYNC] = bool(int(operation.flags) & _ASYNC)
        attributes[semconv.SYNC_DURATION] = _blocked_ns(operation) / 1e9
        if self._identity.synchronized and int(operation.flags) & _SYNCHRONIZED == _ON_DEVICE:
            attributes[semconv.SYNCHRONIZED] = True
        if operation.how is How.FAILED:
            attributes[semconv.ERROR_TYPE] = self._names.text(operation.failure) or UNKNOWN_ERROR
        return attributes

    def _template(self, operation: Operation) -> dict[str, AttributeValue]:
        """Return the attributes that all operations with the same names share."""
        names = self._names
        label = names.label(operation.label) if operation.label != OTHER else None
        named = names.label_name(operation.label) if operation.label != OTHER else None
        site, signature = operation.call_site, names.signature(operation.signature)
        path = names.call_path(site)
        found = of_names(
            signature,
            names.group(operation.group),
            names.call_site(site),
            label or "",
            shown_path(names, site),
            path is not None and path.varies,
        )
        of_named = of_label(named) if named is not None else {}
        return {semconv.RANK: self._identity.rank, semconv.RUN: self._run, **found, **of_named}


def _blocked_ns(operation: Operation) -> int:
    """How long the calling thread was inside the call and inside the first wait.

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
    """Return the span's error: the operation raised, or a thread was still waiting for it at the end."""
    if operation.how is How.FAILED:
        return f"{attributes[semconv.OPERATION]} raised {attributes[semconv.ERROR_TYPE]}"
    if operation.how is not None:
        return None
    if operation.started_ns is None and operation.flags & Flag.ON_DEVICE:
        return None  # the device never got to it
    was_waited_for = operation.returned_ns is None or operation.wait_entered_ns is not None
    if operation.flags & (Flag.END_BY_WAIT | Flag.COALESCED) and not was_waited_for:
        return None  # no thread ever waited for it, so being open means nothing
    return f"{attributes[semconv.OPERATION]} was still in progress when {open_because}"
