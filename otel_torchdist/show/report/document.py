"""The document of a report on a run, as structs that are encoded as JSON for the page, and that page.

Numbers are raw: bytes, nanoseconds, bytes per second; unknown values are null. Times in a window count from its origin.
Text from a job is always a separate value, never part of a sentence in markup.
"""

from __future__ import annotations

from typing import Final

import msgspec

from otel_torchdist.analysis.critical_path.result import PathResult
from otel_torchdist.analysis.result import AdviceResult
from otel_torchdist.analysis.statistics.result import GroupCorrelation, Row
from otel_torchdist.model.text import plain_rank
from otel_torchdist.show.pages.page import Page, asset, html_of
from otel_torchdist.show.report.columns import RankColumns, StepColumns, TimeWindow

SCHEMA: Final = 1
MARKER: Final = "written by otel-torchdist analyze"
"""Stands at the beginning of our files. Files without it are not replaced."""
_SCRIPTS: Final = ("overview.js", "path.js", "world.js", "windows.js", "figures.js", "report.js")
_BODY: Final = """<a class="skip" href="#main">Skip to the report</a>
<header class="bar-top"><span class="brand">otel_torchdist</span><span id="subject"></span>\
<nav aria-label="Sections" id="sections"></nav></header>
<main id="main" aria-busy="true"><p class="empty" id="loading">Reading the report…</p>
<noscript><p>This report is drawn by its own script, which this browser does not run.</p></noscript></main>"""


class Heading(msgspec.Struct, frozen=True):
    """The heading of a report.

    Attributes:
        title: `run 01f9d985`, or a description of the files.
        run: 32 hex digits; None if it has no id.
        place: Path of the tapes or files.
        began: Start of the run, local time; '' if unknown.
        seen_until: Time of the newest record, local time; '' if unknown.
        made: Time of the report, local time.
        made_by: The program, with its version.
        world_size: Number of ranks in the job.
        known_ranks: Number of ranks with records.
        unknown_ranks: The other ranks, as a list of ranges.
        hosts: Host names, each with its ranks as a list of ranges.
        calls: Number of calls of all ranks.
        lost: Number of calls known to be missing.
    """

    title: str
    run: str | None
    place: str
    began: str
    seen_until: str
    made: str
    made_by: str
    world_size: int
    known_ranks: int
    unknown_ranks: str
    hosts: tuple[tuple[str, str], ...]
    calls: int
    lost: int


class Conclusion(msgspec.Struct, frozen=True):
    """A conclusion of `diagnose`.

    Attributes:
        tone: `bad`, `warn` or `good`.
        title: A word or two: `verdict`, `no verdict`.
        sentence: The verdict.
        more: Further sentences.
        ranks: The named ranks.
        details: The last state of each rank, as lines of text.
    """

    tone: str
    title: str
    sentence: str
    more: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    details: str = ""


class PastStall(msgspec.Struct, frozen=True):
    """A completed operation in which ranks waited long for one rank.

    Attributes:
        rank: The rank that came last.
        host: Its host, or ''.
        waited: Number of ranks that waited for it.
        wait_ns: Time that the first of them waited.
        operation: The operation, with sequence and group.
        site: Call site on the late rank, or ''.
        step: The step of the late rank; None if unknown.
        began: Start of the wait, local time.
    """

    rank: int
    host: str
    waited: int
    wait_ns: int
    operation: str
    site: str
    step: int | None
    began: str


class Purpose(msgspec.Struct, frozen=True):
    """A purpose of groups.

    Attributes:
        role: `DP`, `TP`, …
        evidence: The calls that show it.
        calls: Number of these calls.
        sent: Bytes sent in them.
    """

    role: str
    evidence: str
    calls: int
    sent: int


class GroupSet(msgspec.Struct, frozen=True):
    """Groups with the same purpose, along one axis of the world, along a product of axes, or over a part of the ranks.

    Attributes:
        span: Axes along which they extend: `axis 1`, a product of several, or `other`.
        role: Their purpose, in a word.
        size: Number of ranks of each group.
        count: Number of groups.
        examples: Members of the first groups, as lists of ranges.
        purposes: Evidence of the role.
        names: Names given by frameworks.
        sent: Bytes sent in them.
        across_hosts: Number of groups with members on different hosts; None if hosts are unknown.
        balance: Balance of the load on experts, or ''.
    """

    span: str
    role: str
    size: int
    count: int
    examples: tuple[str, ...]
    purposes: tuple[Purpose, ...]
    names: tuple[str, ...]
    sent: int
    across_hosts: int | None
    balance: str


class World(msgspec.Struct, frozen=True):
    """The parallel world.

    Attributes:
        shape: The world as a product of its axes.
        axes: The axes, from the innermost (neighboring ranks) to the outermost.
        others: Groups that lie along no single axis.
        coordinates: By rank, its coordinate on each axis and the copy of the grid, flattened.
        copies: Number of grids of this shape.
        hosts: Index into `host_names`, by rank; -1 if unknown.
        host_names: Host names.
        unknown: Ranks without records.
        remarks: Unknown parts, and groups that do not fit.
    """

    shape: str
    axes: tuple[GroupSet, ...]
    others: tuple[GroupSet, ...]
    coordinates: tuple[int, ...]
    copies: int
    hosts: tuple[int, ...]
    host_names: tuple[str, ...]
    unknown: tuple[int, ...]
    remarks: tuple[str, ...]


class Matrix(msgspec.Struct, frozen=True):
    """Bytes between ranks, or between sets of ranks.

    Attributes:
        unit: Meaning of a row: `rank`, `host` or `ranks`.
        names: Names of rows and columns.
        cells: Row, column and bytes, flattened.
        between_hosts: Bytes between different hosts; None with a single host.
        total: All bytes.
        unattributed: Bytes of `all_to_all` in large groups, which are in no cell.
    """

    unit: str
    names: tuple[str, ...]
    cells: tuple[int, ...]
    between_hosts: int | None
    total: int
    unattributed: int


class RunReport(msgspec.Struct, frozen=True):
    """A report.

    Attributes:
        heading: Its subject.
        conclusions: The conclusions of `diagnose`.
        incidents: Long waits that have ended, the longest first.
        world: The parallel world; None without groups.
        matrix: Traffic between ranks; None if there is none.
        windows: Windows of the timeline. The first one is shown first.
        calls: Rows of calls, by decreasing time.
        calls_left_out: Number of rows of calls left out.
        differences: Calls whose counts differ between members of a group, a sentence each.
        ranks: All ranks.
        skews: Groups, the largest skew first.
        skews_left_out: Number of groups left out of `skews`.
        steps: Step times; None if there are no steps.
        path: The critical path, without its shortest pieces; None if unknown.
        pieces_left_out: Number of pieces left out of `path`.
        advice: Advice, by decreasing gain.
        notes: Unreadable parts, with reasons.
        schema: Version of this document.
    """

    heading: Heading
    conclusions: tuple[Conclusion, ...]
    incidents: tuple[PastStall, ...]
    world: World | None
    matrix: Matrix | None
    windows: tuple[TimeWindow, ...]
    calls: tuple[Row, ...]
    calls_left_out: int
    differences: tuple[str, ...]
    ranks: RankColumns
    skews: tuple[GroupCorrelation, ...]
    skews_left_out: int
    steps: StepColumns | None
    path: PathResult | None
    pieces_left_out: int
    advice: tuple[AdviceResult, ...]
    notes: tuple[str, ...]
    schema: int = SCHEMA


def html_of_report(report: RunReport) -> str:
    """Return the report as one self-contained HTML file."""
    page = Page(
        title=f"{report.heading.title} \N{EN DASH} otel_torchdist",
        body=_BODY,
        scripts=[asset("report", name) for name in _SCRIPTS],
        data=msgspec.json.encode(report, enc_hook=plain_rank),
        style=asset("report", "report.css"),
    )
    return html_of(page, MARKER)
