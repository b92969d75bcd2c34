"""Spans as Jaeger's APIs return them: the JSON of its own (`/api/traces`), and that of OTLP (`/api/v3`)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

_CHILD: Final = "CHILD_OF"
_WARNINGS: Final = "@jaeger@warnings"
"""The attribute in which `/api/v3` returns warnings (`WarningsAttribute` in Jaeger's `internal/jptrace`)."""


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
        tags: Attributes; lists as JSON texts.
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


def trace_of_jaeger(trace: Any) -> list[JaegerSpan]:
    """Return the spans of a trace in Jaeger's own JSON, ordered by start."""
    return _by_start([_of_jaeger(span, trace["processes"][span["processID"]]) for span in trace["spans"]])


def traces_of_otlp(data: Any) -> list[list[JaegerSpan]]:
    """Return the traces in OTLP's JSON, which mixes the spans of all of them; each ordered by start."""
    traces: dict[str, list[JaegerSpan]] = {}
    for process in data.get("resourceSpans", ()):
        resource = _attributes(process.get("resource", {}))
        for scope in process.get("scopeSpans", ()):
            for span in scope.get("spans", ()):
                traces.setdefault(span["traceId"], []).append(_of_otlp(span, resource))
    return [_by_start(spans) for spans in traces.values()]


def _by_start(spans: list[JaegerSpan]) -> list[JaegerSpan]:
    return sorted(spans, key=lambda span: span.start_us)


def _of_jaeger(span: Any, process: Any) -> JaegerSpan:
    references = span.get("references") or []
    trace_id = span["traceID"]
    parents = [link for link in references if link["refType"] == _CHILD and link["traceID"] == trace_id]
    links = [link for link in references if link not in parents]
    resource = {tag["key"]: tag["value"] for tag in process.get("tags") or []}
    return JaegerSpan(
        trace_id=trace_id,
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


def _of_otlp(span: Any, resource: Mapping[str, Any]) -> JaegerSpan:
    start_us = int(span["startTimeUnixNano"]) // 1000
    tags = _attributes(span)
    return JaegerSpan(
        trace_id=span["traceId"],
        span_id=span["spanId"],
        parent_id=span.get("parentSpanId", ""),
        name=span["name"],
        start_us=start_us,
        duration_us=(int(span["endTimeUnixNano"]) - int(span["startTimeUnixNano"])) // 1000,
        tags=tags,
        links=tuple((link["traceId"], link["spanId"]) for link in span.get("links", ())),
        warnings=tuple(json.loads(tags.get(_WARNINGS, "[]"))),
        resource=resource,
    )


def _attributes(holder: Any) -> dict[str, Any]:
    return {one["key"]: _text_if_list(_plain(one.get("value", {}))) for one in holder.get("attributes", ())}


def _plain(value: Any) -> Any:
    """Return the value in OTLP's wrapper, such as 5 for `{"intValue": "5"}`."""
    match value:
        case {"intValue": number}:
            return int(number)
        case {"arrayValue": items}:
            return [_plain(item) for item in items.get("values", ())]
        case {"kvlistValue": items}:
            return {one["key"]: _plain(one["value"]) for one in items.get("values", ())}
        case _:
            return next(iter(value.values()), None)


def _text_if_list(value: Any) -> Any:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False) if isinstance(value, list | dict) else value
