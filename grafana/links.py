"""Links between the dashboards, and from a trace id in a table to the trace."""

from __future__ import annotations

from typing import Final

from grafana_foundation_sdk.builders.dashboard import DashboardLink
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import dashboard as models

JOB: Final = "torchdist-job"
COLLECTIVE: Final = "torchdist-collective"
STALL: Final = "torchdist-stall"
NUMERIC: Final = "torchdist-numeric"
PARTS: Final = "torchdist-parts"

_TITLES: Final = {
    JOB: "Job overview",
    COLLECTIVE: "Collective detail",
    STALL: "Stall investigation",
    PARTS: "Where the step goes",
    NUMERIC: "Numeric health",
}


def title_of(uid: str) -> str:
    """Return the title of a dashboard."""
    return _TITLES[uid]


def to_the_others(uid: str) -> list[Builder[models.DashboardLink]]:
    """Return links to the other dashboards that keep the variables and the time range."""
    return [
        DashboardLink(title)
        .type(models.DashboardLinkType.LINK)
        .icon("dashboard")
        .tooltip(f"{title}, with the same job, run and time")
        .url(f"/d/{other}")
        .include_vars(True)
        .keep_time(True)
        for other, title in _TITLES.items()
        if other != uid
    ]


def to_the_trace() -> list[dict[str, object]]:
    """Return the data link of a cell with a trace id.

    It leads to Jaeger's page: in Grafana the trace would open in Explore, which viewers may not use.
    """
    return [{"title": "Open the trace in Jaeger", "url": "${jaeger_url}/trace/${__value.raw}", "targetBlank": True}]
