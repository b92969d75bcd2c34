"""A client of Jaeger's HTTP API, from Jaeger 2.13 on.

Up to 2.18, only `/api/traces` searches by attributes: `/api/v3/traces` ignores them. Since 2.19 both do, and later
versions have removed the search of `/api/traces` (https://github.com/jaegertracing/jaeger/pull/9260).
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from deploy.native.http_json import ApiError, get_json
from deploy.native.jaeger_spans import JaegerSpan, trace_of_jaeger, traces_of_otlp

_LOOKBACK: Final = datetime.timedelta(days=2)
_NOT_JSON: Final = "?"


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
            if error.status == 404:
                return []
            raise
        return trace_of_jaeger(answer["data"][0]) if answer["data"] else []

    def trace_in_otlp(self, trace_id: str) -> list[JaegerSpan]:
        """Return the same as `trace`, from `/api/v3`.

        Raises:
            ApiError: Jaeger does not answer.
        """
        traces = self._otlp(f"/api/v3/traces/{trace_id}", {})
        return traces[0] if traces else []

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
        if self.finds_attributes_in_otlp():
            return self.find_in_otlp(service, tags, operation, min_duration, limit)
        parameters = {"service": service, "limit": str(limit), "lookback": "2d"}
        if tags:
            parameters["tags"] = json.dumps(tags)
        if operation:
            parameters["operation"] = operation
        if min_duration:
            parameters["minDuration"] = min_duration
        return [trace_of_jaeger(trace) for trace in get_json(f"{self.url}/api/traces", parameters)["data"]]

    def find_in_otlp(
        self,
        service: str,
        tags: Mapping[str, str] | None = None,
        operation: str | None = None,
        min_duration: str | None = None,
        limit: int = 100,
    ) -> list[list[JaegerSpan]]:
        """Search as `find`, in `/api/v3`. Jaeger up to 2.18 ignores `tags`.

        Raises:
            ApiError: Jaeger does not answer.
        """
        now = datetime.datetime.now(datetime.timezone.utc)
        conditions = {
            "service_name": service,
            "operation_name": operation,
            "attributes": json.dumps(tags) if tags else None,
            "start_time_min": _rfc3339(now - _LOOKBACK),
            "start_time_max": _rfc3339(now),
            "duration_min": min_duration,
            "num_traces": str(limit),
        }
        return self._otlp("/api/v3/traces", {f"query.{name}": text for name, text in conditions.items() if text})

    def finds_attributes_in_otlp(self) -> bool:
        """Return whether `/api/v3/traces` reads attributes, by whether it refuses an unreadable text of them.

        Raises:
            ApiError: Jaeger does not answer.
        """
        try:
            get_json(f"{self.url}/api/v3/traces", {"query.attributes": _NOT_JSON})
        except ApiError as error:
            if error.status != 400:
                raise
            return "query.attributes" in str(error).partition(": 400 ")[2]
        return False

    def services(self) -> list[str]:
        """Return the names of all services that have sent spans.

        Raises:
            ApiError: Jaeger does not answer.
        """
        return get_json(f"{self.url}/api/v3/services").get("services") or []

    def _otlp(self, path: str, parameters: Mapping[str, str]) -> list[list[JaegerSpan]]:
        try:
            return traces_of_otlp(get_json(f"{self.url}{path}", parameters)["result"])
        except ApiError as error:
            if error.status == 404:  # no trace was found
                return []
            raise


def _rfc3339(moment: datetime.datetime) -> str:
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")
