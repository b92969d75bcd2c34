"""A client of Jaeger's HTTP API."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from deploy.native.http_json import ApiError, get_json

MOST_TRACES: Final = 1500


@dataclass(frozen=True, slots=True)
class JaegerSpan:
    """A span as Jaeger returns it.

    Attributes:
        trace_id: 32 hexadecimal digits.
        span_id: 16 hexadecimal digits.
        parent_id: Span id of the parent; '' for a root.
        name: Name of the span.
        start_us: Start, in microseconds since 1970.
        duration_us: Duration in microseconds.
        tags: Attributes; Jaeger returns lists as JSON texts.
        links: Trace id and span id of each link.
        warnings: Jaeger's warnings about the span.
        resource: Attributes of the process, and `service.name`.
    """

    trace_id: str
    span_id: str
    parent_id: str
    name: str
    start_us: int
    duration_us: int
    tags: Mapping[str, Any]
    links: tuple[tuple[str, str], ...]
    warnings: tuple[str, ...]
    resource: Mapping[str, Any]

    @property
    def end_us(self) -> int:
        """End, in microseconds since 1970."""
        return self.start_us + self.duration_us


@dataclass(frozen=True, slots=True)
class JaegerApi:
    """A client of the Jaeger at `url`."""

    url: str

    def trace(self, trace_id: str) -> list[JaegerSpan]:
        """Return all spans of a trace, ordered by start; an empty list if Jaeger does not know the trace.

        Raises:
            ApiError: Jaeger does not answer.
        """
        try:
            answer = get_json(f"{self.url}/api/traces/{trace_id}")
        except ApiError as error:
            if ": 404 " in str(error):
                return []
            raise
        return _spans(answer["data"][0]) if answer["data"] else []

    def find(
        self,
        service: str,
        tags: Mapping[str, str] | None = None,
        operation: str | None = None,
        min_duration: str | None = None,
        limit: int = 100,
    ) -> list[list[JaegerSpan]]:
        """Search for traces in which one span meets all conditions; return whole traces.

        Args:
            service: `service.name` of the job.
            tags: Attributes and their values, as text.
            operation: Name of the span.
            min_duration: Minimum duration of the span, such as `100ms`.
            limit: Maximum number of traces.

        Raises:
            ApiError: Jaeger does not answer.
        """
        parameters = {"service": service, "limit": str(limit), "lookback": "2d"}
        if tags:
            parameters["tags"] = json.dumps(tags)
        if operation:
            parameters["operation"] = operation
        if min_duration:
            parameters["minDuration"] = min_duration
        return [_spans(trace) for trace in get_json(f"{self.url}/api/traces", parameters)["data"]]

    def services(self) -> list[str]:
        """Return the names of all services that have sent spans.

        Raises:
            ApiError: Jaeger does not answer.
        """
        return get_json(f"{self.url}/api/services")["data"] or []


def _spans(trace: Any) -> list[JaegerSpan]:
    spans = [_span(span, trace["processes"][span["processID"]]) for span in trace["spans"]]
    return sorted(spans, key=lambda span: span.start_us)


def _span(span: Any, process: Any) -> JaegerSpan:
    references = span.get("references") or []
    trace_id = span["traceID"]
    parents = [link for link in references if link["refType"] == "CHILD_OF" and link["traceID"] == trace_id]
    links = [link for link in references if link not in parents]
    resource = {tag["key"]: tag["value"] for tag in process.get("tags") or []}
    return JaegerSpan(
        trace_id=span["traceID"],
        span_id=span["spanID"],
        parent_id=parents[0]["spanID"] if parents else "",
        name=span["operationName"],
        start_us=span["startTime"],
        duration_us=span["duration"],
        tags={tag["key"]: tag["value"] for tag in span.get("tags") or []},
        links=tuple((link["traceID"], link["spanID"]) for link in links),
        warnings=tuple(span.get("warnings") or ()),
        resource=resource | {"service.name": process["serviceName"]},
    )
