"""Pictures for notebooks, by altair: a picture is a Vega-Lite specification, which any notebook renders."""

from __future__ import annotations

import importlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from otel_torchdist.analysis.clocks.alignment import ClockAligner
from otel_torchdist.analysis.timeline.drawing import aligned, timeline_of
from otel_torchdist.analysis.timeline.rank_timeline import Extent, RankTimeline
from otel_torchdist.errors import RunError
from otel_torchdist.model.history import RankHistory
from otel_torchdist.model.text import readable
from otel_torchdist.runs.tables.table import Table
from otel_torchdist.sources.history.call_table import OPEN, CallTable

if TYPE_CHECKING:
    import altair

_WIDTH: Final = 800
_ROW_HEIGHT: Final = 24
_MS: Final = 1e6


def _altair() -> Any:
    """Import altair.

    Raises:
        ImportError: It is not installed; the message names the extra.
    """
    try:
        return importlib.import_module("altair")
    except ModuleNotFoundError as error:
        raise ImportError("pictures need altair: pip install 'otel-torchdist[notebook]'", name="altair") from error


def timeline_chart(
    histories: Iterable[RankHistory], ranks: Collection[int] | None, steps: tuple[int, int] | None, max_calls: int
) -> altair.Chart:
    """Draw calls over time, a row for each rank; see `RecordedRun.plot_timeline`."""
    alt = _altair()
    drawn = _aligned_timelines(histories, Extent(None if ranks is None else frozenset(ranks), steps))
    newest = sorted(((rank.calls.started[i], rank, i) for rank in drawn for i in range(len(rank.calls))), key=_start)
    if not newest:
        raise RunError("no matching call to draw")
    newest = newest[-max_calls:]
    start_ns = newest[0][0]
    end_ns = max(rank.newest_ns for rank in drawn)
    values = [_bar(rank, index, start_ns, end_ns) for _, rank, index in newest]
    return (
        alt.Chart(alt.Data(values=values))
        .mark_bar()
        .encode(
            x=alt.X("start_ms:Q", title="time in ms"),
            x2="end_ms:Q",
            y=alt.Y("rank:O", title="rank"),
            color=alt.Color("operation:N", title="operation"),
            tooltip=["rank:O", "operation:N", "group:N", "sequence:Q", "step:Q", "ms:Q", "site:N", "state:N"],
        )
        .properties(width=_WIDTH, height=alt.Step(_ROW_HEIGHT), title=f"{len(values):,} calls")
    )


def _start(row: tuple[int, RankTimeline, int]) -> tuple[int, int]:
    return row[0], row[1].rank


def _aligned_timelines(histories: Iterable[RankHistory], extent: Extent) -> list[RankTimeline]:
    """Return the drawn ranks, on one clock. All ranks are read, because clocks are aligned by all."""
    aligner, table, drawn = ClockAligner(), CallTable(), list[RankTimeline]()
    for history in histories:
        calls = table.columns_of(history)
        aligner.add(calls)
        if extent.ranks is None or history.rank in extent.ranks:
            drawn.append(timeline_of(calls, aligner.wall_offset_ns(calls), extent))
    alignment = aligner.alignment()
    return drawn if len(alignment.clocks) < 2 else [aligned(rank, alignment) for rank in drawn]


def _bar(rank: RankTimeline, index: int, start_ns: int, end_ns: int) -> dict[str, Any]:
    calls = rank.calls
    kind, began_ns, ended_ns = calls.kinds[calls.kind[index]], calls.started[index], calls.ended[index]
    until_ns = max(end_ns, began_ns) if ended_ns == OPEN else ended_ns
    return {
        "rank": rank.rank,
        "operation": readable(kind.operation),
        "group": readable(kind.group.label) if kind.group is not None else None,
        "sequence": calls.sequence[index],
        "step": calls.step[index],
        "start_ms": (began_ns - start_ns) / _MS,
        "end_ms": (until_ns - start_ns) / _MS,
        "ms": (until_ns - began_ns) / _MS,
        "site": readable(f"{kind.site.file}:{kind.site.line}") if kind.site is not None else None,
        "state": "open" if ended_ns == OPEN else "ended",
    }


def steps_chart(steps: Table) -> altair.LayerChart:
    """Draw the duration of each step; see `RecordedRun.plot_steps`."""
    alt = _altair()
    by_step: dict[int, list[int]] = defaultdict(list)
    rows: Sequence[dict[str, Any]] = steps.to_arrow().select(["step", "duration_ns"]).to_pylist()
    for row in rows:
        if row["duration_ns"] is not None:
            by_step[row["step"]].append(row["duration_ns"])
    if not by_step:
        raise RunError("no durations of steps are recorded")
    values = [
        {
            "step": step,
            "shortest": min(of_ranks) / _MS,
            "median": median(of_ranks) / _MS,
            "longest": max(of_ranks) / _MS,
        }
        for step, of_ranks in sorted(by_step.items())
    ]
    base = alt.Chart(alt.Data(values=values)).encode(x=alt.X("step:Q", title="step"))
    band = base.mark_area(opacity=0.3).encode(y=alt.Y("shortest:Q", title="ms"), y2="longest:Q")
    line = base.mark_line().encode(y="median:Q", tooltip=["step:Q", "shortest:Q", "median:Q", "longest:Q"])
    return alt.layer(band, line).properties(width=_WIDTH, title="duration of steps: median and range of the ranks")
