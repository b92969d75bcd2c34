"""All queries of a dashboard, as Prometheus receives them once Grafana has replaced the variables."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.support.repository import REPOSITORY

DASHBOARDS: Final = sorted((REPOSITORY / "grafana" / "dashboards").glob("*.json"))

EVERYTHING: Final = {
    "job": "torchdist",
    "run": "0badcafe",
    "group": ".*",
    "rank": ".*",
    "operation": ".*",
    "__rate_interval": "1m",
    "__range": "30m",
    "__interval": "15s",
}
"""A value for each variable that queries may use, and for Grafana's own."""

_VARIABLE: Final = re.compile(r"\$(?:\{(?P<braced>\w+)\}|(?P<bare>\w+))")


@dataclass(frozen=True, slots=True)
class PanelQuery:
    """A query of a panel.

    Attributes:
        dashboard: Uid of its dashboard.
        panel: Title of its panel.
        ref: Its name among the panel's queries: `A`, `B`, ...
        expr: The expression, without variables.
        instant: Whether it asks for the current value only, not for the time range.
        legend: Name of its series; labels as `{{label}}`.
    """

    dashboard: str
    panel: str
    ref: str
    expr: str
    instant: bool
    legend: str


def queries(dashboard: Path, values: Mapping[str, str]) -> list[PanelQuery]:
    """The queries of all panels of a dashboard.

    Args:
        dashboard: Its file.
        values: A value for each variable, without its `$`; `EVERYTHING` has them all.

    Raises:
        KeyError: A query uses a variable that has no value.
    """
    document = json.loads(dashboard.read_text(encoding="utf-8"))
    return [
        PanelQuery(
            dashboard=document["uid"],
            panel=panel["title"],
            ref=target["refId"],
            expr=substituted(target["expr"], values),
            instant=target["instant"],
            legend=target["legendFormat"],
        )
        for panel in panels(document)
        for target in panel["targets"]
    ]


def panels(document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The panels of a dashboard, including those in collapsed rows, without the rows themselves."""
    for panel in document["panels"]:
        if panel["type"] == "row":
            yield from panel["panels"]
        else:
            yield panel


def substituted(text: str, values: Mapping[str, str]) -> str:
    """The text with `$variable` and `${variable}` replaced by values."""
    return _VARIABLE.sub(lambda match: values[match["braced"] or match["bare"]], text)


def used_variables(text: str) -> set[str]:
    """Names of the variables in a text."""
    return {match["braced"] or match["bare"] for match in _VARIABLE.finditer(text)}
