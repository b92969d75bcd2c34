"""Builds a dashboard from its sections: defaults, links, variables and panel numbers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from grafana_foundation_sdk.builders.dashboard import Dashboard, Row
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import TimeZoneBrowser
from grafana_foundation_sdk.models.dashboard import DashboardCursorSync, RowPanel, VariableModel
from grafana_foundation_sdk.models.table import Options as TableOptions

from grafana import variables
from grafana.links import title_of, to_the_others
from grafana.panels import Panel

_TAG: Final = "torchdist"


@dataclass(frozen=True, slots=True)
class Section:
    """A row of a dashboard: a heading and its panels."""

    title: str
    panels: Sequence[Panel]


def dashboard_json(
    uid: str, description: str, sections: Sequence[Section], more_variables: Sequence[Builder[VariableModel]] = ()
) -> str:
    """Return the JSON text of a dashboard; deterministic."""
    builder = (
        Dashboard(f"torchdist: {title_of(uid)}")
        .uid(uid)
        .description(description)
        .tags([_TAG])
        .refresh("5s")
        .time("now-30m", "now")
        .timezone(TimeZoneBrowser)
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .readonly()
        .links(to_the_others(uid))
        .variables([*variables.of_every_dashboard(), *more_variables])
    )
    for section in sections:
        builder.with_row(Row(section.title))
        for panel in section.panels:
            builder.with_panel(panel)
    dashboard = builder.build()
    for number, panel in enumerate(dashboard.panels or [], start=1):
        panel.id_val = number
        if not isinstance(panel, RowPanel) and panel.options is None:
            panel.options = {}  # Grafana's schema does not allow null here
        elif not isinstance(panel, RowPanel) and isinstance(panel.options, TableOptions):
            panel.options.footer = None  # Grafana 12.2 moved it to the fields, and Grafana 13's schema refuses it here
    for variable in dashboard.templating.list_val or []:
        variable.auto = variable.auto_min = variable.auto_count = None  # fields of interval variables only
    return json.dumps(dashboard, cls=JSONEncoder, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
