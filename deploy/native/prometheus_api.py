"""Queries Prometheus and Alertmanager, as their own pages do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from deploy.native.http_json import get_json


@dataclass(frozen=True, slots=True)
class Sample:
    """A series and its newest value."""

    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, slots=True)
class PrometheusApi:
    """Query the server at `url`."""

    url: str

    def query(self, expression: str) -> list[Sample]:
        """The current value of an expression; a scalar is a sample without labels.

        Raises:
            ApiError: Prometheus does not answer, or the expression is wrong.
        """
        data = get_json(f"{self.url}/api/v1/query", {"query": expression})["data"]
        if data["resultType"] == "scalar":
            return [Sample({}, float(data["result"][1]))]
        return [Sample(one["metric"], float(one["value"][1])) for one in data["result"]]

    def query_range(self, expression: str, start: float, end: float, step: float) -> int:
        """How many series an expression has between two times.

        Raises:
            ApiError: Prometheus does not answer, or the expression is wrong.
        """
        times = {"start": f"{start:.3f}", "end": f"{end:.3f}", "step": f"{step:g}"}
        return len(get_json(f"{self.url}/api/v1/query_range", {"query": expression, **times})["data"]["result"])

    def exemplars(self, expression: str, start: float, end: float) -> list[Mapping[str, str]]:
        """The labels of all exemplars that series of an expression have between two times.

        Raises:
            ApiError: Prometheus does not answer, or the expression is wrong.
        """
        times = {"start": f"{start:.3f}", "end": f"{end:.3f}"}
        found = get_json(f"{self.url}/api/v1/query_exemplars", {"query": expression, **times})["data"]
        return [exemplar["labels"] for series in found for exemplar in series["exemplars"]]


@dataclass(frozen=True, slots=True)
class Alert:
    """An alert in Alertmanager."""

    name: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    is_active: bool


@dataclass(frozen=True, slots=True)
class AlertmanagerApi:
    """Query the server at `url`."""

    url: str

    def alerts(self) -> list[Alert]:
        """All alerts that it knows.

        Raises:
            ApiError: Alertmanager does not answer.
        """
        return [
            Alert(one["labels"]["alertname"], one["labels"], one["annotations"], one["status"]["state"] == "active")
            for one in get_json(f"{self.url}/api/v2/alerts")
        ]
