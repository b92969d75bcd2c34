"""The report on a run as one document: structs whose encoding is the JSON that its page draws, and that page.

Numbers are raw: bytes, nanoseconds, bytes per second; unknown values are null. Times of a window count from its origin.
Everything that comes from a job is text of its own, never part of a sentence in markup.
"""

from __future__ import annotations

from importlib import resources
from typing import Final

import msgspec

from otel_torchdist.analysis.critical_path.result import PathResult
from otel_torchdist.analysis.result import AdviceResult
from otel_torchdist.analysis.statistics.result import GroupCorrelation, Row
from otel_torchdist.model.naming import plain_rank
from otel_torchdist.show.pages.page import Page, html_of
from otel_torchdist.show.report.columns import RankColumns, StepColumns, TimeWindow

SCHEMA: Final = 1
MARKER: Final = "written by otel-torchdist analyze"
"""Stands at the beginning of the file: only such files are replaced."""
_SCRIPTS: Final = ("overview.js", "path.js", "world.js", "windows.js", "figures.js", "report.js")
_BODY: Final = """<a class="skip" href="#main">Skip to the report</a>
<header class="bar-top"><span class="brand">otel_torchdist</span><span id="subject"></span>\
<nav aria-label="Sections" id="sections"></nav></header>
<main id="main" aria-busy="true"><p class="empty" id="loading">Reading the report…</p>
<noscript><p>This report is drawn by its own script, which this browser does not run.</p></noscript></main>"""


class Heading(msgspec.Struct, frozen=True):
    """What the report is about.

    Attributes:
        title: `run 01f9d985`, or what files it was read from.
        run: 32 hex digits; None if it has no id.
        place: Where it was read.
        began: When the run began, local time; '' if that is not known.
        seen_until: The time of the newest record, local time; ''.
        made: When the report was made, local time.
        made_by: The program, with its version.
        world_size: Ranks of the job.
        known_ranks: How many of them have records.
        unknown_ranks: The others, as a list of ranges.
        hosts: Host names, each with its ranks as a list of ranges.
        calls: Calls of all ranks.
        lost: Calls that are known to be missing.
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
    """What `diagnose` says of the run.

    Attributes:
        tone: `bad`, `warn` or `good`.
        title: A word or two: `verdict`, `no verdict`.
        sentence: The verdict.
        more: What follows from it, a sentence each.
        ranks: The ranks that it names.
        details: What each rank was doing last, as lines of text.
    """

    tone: str
    title: str
    sentence: str
    more: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    details: str = ""


class PastStall(msgspec.Struct, frozen=True):
    """An operation at which ranks waited for one rank for a long time, and which has ended since.

    Attributes:
        rank: The rank that came last.
        host: Its host, or ''.
        waited: How many ranks waited for it.
        wait_ns: How long the first of them waited.
        operation: What they were in, with sequence and group.
        site: Where the late rank called it; ''.
        step: The step of the late rank; None if that is not known.
        began: When the first rank began to wait, local time.
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
    """What groups are for.

    Attributes:
        role: `DP`, `TP`, …
        evidence: What was called.
        calls: How many calls speak for it.
        sent: Bytes that were sent in them.
    """

    role: str
    evidence: str
    calls: int
    sent: int


class GroupSet(msgspec.Struct, frozen=True):
    """Groups that are for the same: those along an axis, a product of axes, or a part.

    Attributes:
        span: Along which axes they are: `axis 1`, a product of several, or `other`.
        role: What they are for, in a word.
        size: Ranks of each group.
        count: How many groups there are.
        examples: Members of the first ones, as lists of ranges.
        purposes: Why.
        names: What frameworks call them.
        sent: Bytes that were sent in them.
        across_hosts: How many have members on different hosts; None if hosts are not known.
        balance: How evenly experts are used; ''.
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
        axes: The axes, nearest neighbours first.
        others: All other groups.
        coordinates: By rank, its coordinate on each axis and the copy of the grid, one after the other.
        copies: How many grids of this shape there are.
        hosts: By rank, which of the host names it is on; -1 if that is not known.
        host_names: Host names.
        unknown: Ranks without records.
        remarks: What is not known, and what does not fit.
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
    """Bytes between ranks, or between sets of them.

    Attributes:
        unit: What a row stands for: `rank`, `host` or `ranks`.
        names: Of rows and columns.
        cells: Row, column and bytes, one after the other.
        between_hosts: Bytes between different hosts; None if there are not several.
        total: All bytes.
        unattributed: Bytes of large `all_to_all`, which are in no cell.
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
        heading: What it is about.
        conclusions: What `diagnose` says.
        incidents: Long waits that have ended, the longest first.
        world: The parallel world; None without groups.
        matrix: What moves between ranks; None if nothing does.
        windows: What the timeline shows; the first one comes first.
        calls: Calls by what they have in common, most time first.
        calls_left_out: How many more such rows there are.
        differences: Where members of a group have not called something equally often, a sentence each.
        ranks: All ranks.
        skews: Groups, the largest skew first.
        skews_left_out: How many more groups there are.
        steps: Step times; None if there are no steps.
        path: The critical path, without its shortest pieces; None if it is not known.
        pieces_left_out: Number of these.
        advice: What is worth looking into.
        notes: What could not be read, and why.
        schema: Of this document.
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
    return (resources.files("otel_torchdist.show.report") / "assets" / name).read_text(encoding="utf-8")
