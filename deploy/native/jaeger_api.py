"""Queries Jaeger for traces, as its own pages do."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from deploy.native.http_json import ApiError, get_json

MOST_TRACES: Final = 1500


@dataclass(frozen=True, slots=True)
class JaegerSpan:
    """A span as Jaeger shows it.

    Attributes:
        trace_id: 32 hex digits.
        span_id: 16 hex digits.
        parent_id: Id of the parent; '' for a root.
        name: Its name.
        start_us: Begin, microseconds since 1970.
        duration_us: Its length.
        tags: Attributes; lists are JSON texts, as Jaeger has them.
        links: Trace and span id of each link.
        warnings: Jaeger's warnings about it.
        resource: Attributes of its process, and `service.name`.
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
        """End, microseconds since 1970."""
        return self.start_us + self.duration_us


@dataclass(frozen=True, slots=True)
class JaegerApi:
    """Query the service at `url`."""

    url: str

    def trace(self, trace_id: str) -> list[JaegerSpan]:
        """All spans of a trace, by start; none if Jaeger does not know it.

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
        """Whole traces in which one span has all these tags, as a search on its page.

        Args:
            service: `service.name` of the job.
            tags: Attributes and their values, as text.
            operation: Name of the span.
            min_duration: Minimum length of the span, such as `100ms`.
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
        """Names of all services that have sent spans.

        Raises:
            ApiError: Jaeger does not answer.
        """
        return get_json(f"{self.url}/api/services")["data"] or []


def _spans(trace: Any) -> list[JaegerSpan]:
    spans = [_span(span, trace["processes"][span["processID"]]) for span in trace["spans"]]
    return sorted(spans, key=lambda span: span.start_us)


def _span(span: Any, process: Any) -> JaegerSpan:
    references = span.get("references") or []
    parents = [one for one in references if one["refType"] == "CHILD_OF" and one["traceID"] == span["traceID"]]
    links = [one for one in references if one not in parents]
    resource = {tag["key"]: tag["value"] for tag in process.get("tags") or []}
    return JaegerSpan(
        trace_id=span["traceID"],
        span_id=span["spanID"],
        parent_id=parents[0]["spanID"] if parents else "",
        name=span["operationName"],
        start_us=span["startTime"],
        duration_us=span["duration"],
        tags={tag["key"]: tag["value"] for tag in span.get("tags") or []},
        links=tuple((one["traceID"], one["spanID"]) for one in links),
        warnings=tuple(span.get("warnings") or ()),
        resource=resource | {"service.name": process["serviceName"]},
    )
