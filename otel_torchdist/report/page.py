"""The report as a page for browsers."""

from __future__ import annotations

from importlib import resources
from typing import Final

import msgspec

from otel_torchdist.naming import plain_rank
from otel_torchdist.pages.page import Page, html_of
from otel_torchdist.report.document import RunReport

MARKER: Final = "written by otel-torchdist analyze"
"""Stands at the beginning of the file: only such files are replaced."""
_SCRIPTS: Final = ("overview.js", "path.js", "world.js", "windows.js", "figures.js", "report.js")
_BODY: Final = """<a class="skip" href="#main">Skip to the report</a>
<header class="bar-top"><span class="brand">otel_torchdist</span><span id="subject"></span>\
<nav aria-label="Sections" id="sections"></nav></header>
<main id="main" aria-busy="true"><p class="empty" id="loading">Reading the report…</p>
<noscript><p>This report is drawn by its own script, which this browser does not run.</p></noscript></main>"""


def html_of_report(report: RunReport) -> str:
    """Return the document: one file, which needs nothing else."""
    page = Page(
        title=f"{report.heading.title} \N{EN DASH} otel_torchdist",
        body=_BODY,
        scripts=[_asset(name) for name in _SCRIPTS],
        data=msgspec.json.encode(report, enc_hook=plain_rank),
        style=_asset("report.css"),
    )
    return html_of(page, MARKER)


def _asset(name: str) -> str:
    return (resources.files("otel_torchdist.report") / "assets" / name).read_text(encoding="utf-8")
