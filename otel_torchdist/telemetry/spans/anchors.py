"""Builds anchors: the spans of segments of a step, under which their operations and activities are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from opentelemetry.util.types import AttributeValue

from otel_torchdist import semconv
from otel_torchdist.model.incident import LinkTarget
from otel_torchdist.model.operations import Operation
from otel_torchdist.naming import anchor_span_id, compress_ranks, run_label, trace_id_of_step
from otel_torchdist.tape.identity import TapeIdentity
from otel_torchdist.tape.names.reader import NamesReader
from otel_torchdist.tape.status import WallClock
from otel_torchdist.telemetry.spans.model import FinishedSpan
from otel_torchdist.telemetry.spans.operation import MIN_DURATION_NS
from otel_torchdist.telemetry.spans.segments import StepSegment

MAX_GROUPS: Final = 16
"""Groups whose members an anchor lists."""


class AnchorSpans:
    """Builds the anchors of one tape."""

    def __init__(
        self,
        identity: TapeIdentity,
        names: NamesReader,
        clock: WallClock,
        links: Sequence[LinkTarget],
        describe: Callable[[], Mapping[str, AttributeValue]],
    ) -> None:
        """Build anchors of a tape.

        Args:
            identity: The tape's identity.
            names: Its dictionary.
            clock: Converts its times; the caller keeps it up to date.
            links: Added to every anchor.
            describe: Called before the first anchor; returns further attributes of all anchors.
        """
        self._identity = identity
        self._names = names
        self._clock = clock
        self._links = tuple(links)
        self._describe = describe
        self._described: Mapping[str, AttributeValue] | None = None

    def span(self, segment: StepSegment, run_id: int, links: tuple[LinkTarget, ...]) -> FinishedSpan:
        """Build the anchor of a segment.

        Args:
            segment: The segment.
            run_id: The run.
            links: Its links, before those of every anchor.
        """
        identity = self._identity
        start_ns = self._clock.wall_ns(segment.start_ns)
        if self._described is None:  # not before: a tape exists for a moment before its rank has described itself
            self._described = self._describe()
        attributes: dict[str, AttributeValue] = {
            **self._described,
            semconv.RANK: identity.rank,
            semconv.WORLD_SIZE: identity.world_size,
            semconv.RUN: run_label(run_id),
            semconv.STEP: segment.step,
            semconv.STEP_SEGMENT: segment.number,
            semconv.STEP_SEGMENT_END: segment.end.value,
            semconv.HOST_NAME: identity.host,
            semconv.PROCESS_PID: identity.pid,
        }
        groups = self._groups(segment.operations)
        if groups:
            attributes[semconv.GROUP_RANKS] = groups
        return FinishedSpan(
            name=semconv.STEP_SPAN.format(rank=identity.rank),
            trace_id=trace_id_of_step(run_id, segment.step),
            span_id=anchor_span_id(identity.nonce, segment.step, segment.number),
            parent_id=None,
            start_ns=start_ns,
            end_ns=max(self._clock.wall_ns(segment.end_ns), start_ns + MIN_DURATION_NS),
            attributes=attributes,
            links=(*links, *self._links),
        )

    def _groups(self, operations: Sequence[Operation]) -> list[str]:
        """Members of the groups used in a segment."""
        groups = {operation.group: self._names.group(operation.group) for operation in operations}
        texts = {f"{group.key}: {compress_ranks(group.ranks)}" for group in groups.values() if group}
        return sorted(texts)[:MAX_GROUPS]
