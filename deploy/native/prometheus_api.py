"""Clients of the HTTP APIs of Prometheus and Alertmanager."""

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
    """A client of the Prometheus server at `url`."""

    url: str

    def query(self, expression: str) -> list[Sample]:
        """Return the current value of an expression; a scalar becomes a sample without labels.

        Raises:
            ApiError: Prometheus does not answer, or the expression is wrong.
        """
        data = get_json(f"{self.url}/api/v1/query", {"query": expression})["data"]
        if data["resultType"] == "scalar":
            return [Sample({}, float(data["result"][1]))]
        return [Sample(series["metric"], float(series["value"][1])) for series in data["result"]]

    def query_range(self, expression: str, start: float, end: float, step: float) -> int:
        """Return the number of series of an expression between two times.

        Raises:
            ApiError: Prometheus does not answer, or the expression is wrong.
        """
        times = {"start": f"{start:.3f}", "end": f"{end:.3f}", "step": f"{step:g}"}
        return len(get_json(f"{self.url}/api/v1/query_range", {"query": expression, **times})["data"]["result"])

    def exemplars(self, expression: str, start: float, end: float) -> list[Mapping[str, str]]:
        """Return the labels of all exemplars of an expression's series between two times.

        Raises:
            ApiError: Prometheus does not answer, or the expression is wrong.
        """
        times = {"start": f"{start:.3f}", "end": f"{end:.3f}"}
        data = get_json(f"{self.url}/api/v1/query_exemplars", {"query": expression, **times})["data"]
        return [exemplar["labels"] for series in data for exemplar in series["exemplars"]]


@dataclass(frozen=True, slots=True)
class Alert:
    """An alert in Alertmanager."""

    name: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    is_active: bool


@dataclass(frozen=True, slots=True)
class AlertmanagerApi:
    """A client of the Alertmanager at `url`."""

    url: str

    def alerts(self) -> list[Alert]:
        """Return all alerts.

        Raises:
            ApiError: Alertmanager does not answer.
        """
        return [
            Alert(
                alert["labels"]["alertname"],
                alert["labels"],
                alert["annotations"],
                alert["status"]["state"] == "active",
            )
            for alert in get_json(f"{self.url}/api/v2/alerts")
        ]
