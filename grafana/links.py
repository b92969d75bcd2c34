"""Links between the dashboards, and from a cell with a trace's id to that trace."""

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
    """The dashboard's title."""
    return _TITLES[uid]


def to_the_others(uid: str) -> list[Builder[models.DashboardLink]]:
    """Links to the other dashboards, which keep the variables and the time range."""
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
    """The data link of a cell whose value is the id of a trace.

    To Jaeger's own page: inside Grafana it would be in Explore, which viewers may not open.
    """
    return [{"title": "Open the trace in Jaeger", "url": "${jaeger_url}/trace/${__value.raw}", "targetBlank": True}]
