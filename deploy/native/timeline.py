"""Draws a trace as Jaeger's page does: one line per span, with a bar from its start to its end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from rich.table import Table
from rich.text import Text

from deploy.native.jaeger_spans import JaegerSpan

MIN_BAR: Final = 16
MAX_BAR: Final = 72
MAX_ROWS: Final = 40
_REST: Final = 12
"""Columns for the duration and for gaps."""
_OPEN: Final = "(in progress)"
_ERROR: Final = "red"
_USUAL: Final = "cyan"


def timeline(spans: Sequence[JaegerSpan], title: str, width: int) -> Table:
    """Return a trace as a table with at most `MAX_ROWS` spans.

    Args:
        spans: All spans of the trace.
        title: Title of the table.
        width: Maximum width in columns.
    """
    rows = list(_in_tree_order(spans))
    names = ["  " * depth + span.name for depth, span in rows[:MAX_ROWS]]
    bar_width = min(max(width - max(map(len, names)) - _REST, MIN_BAR), MAX_BAR)
    begin = min(span.start_us for span in spans)
    length = max(max(span.end_us for span in spans) - begin, 1)
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    table.add_column("span", no_wrap=True)
    table.add_column(f"0 s{_duration(length):>{bar_width - 3}}", no_wrap=True, width=bar_width)
    table.add_column("duration", justify="right", no_wrap=True)
    for name, (_, span) in zip(names, rows, strict=False):
        is_error = bool(span.tags.get("error")) or span.tags.get("torchdist.stalled") is True
        style = _ERROR if is_error else _USUAL
        bar = Text(_bar(span, begin, length, bar_width), style=style)
        table.add_row(Text(name, style=style if is_error else ""), bar, _duration(span.duration_us))
    if len(rows) > MAX_ROWS:
        table.add_row(f"… {len(rows) - MAX_ROWS} more spans", "", "")
    return table


def _in_tree_order(spans: Sequence[JaegerSpan]) -> Iterator[tuple[int, JaegerSpan]]:
    """Yield each span with its depth, after its parent; siblings are ordered by start."""
    span_ids = {span.span_id for span in spans}
    children: dict[str, list[JaegerSpan]] = {}
    for span in sorted(spans, key=lambda span: (span.start_us, span.end_us, span.name)):
        children.setdefault(span.parent_id if span.parent_id in span_ids else "", []).append(span)
    pending = [(0, span) for span in reversed(children.get("", []))]
    while pending:
        depth, span = pending.pop()
        yield depth, span
        pending += [(depth + 1, child) for child in reversed(children.get(span.span_id, []))]


def _bar(span: JaegerSpan, begin_us: int, length_us: int, width: int) -> str:
    first = min((span.start_us - begin_us) * width // length_us, width - 1)
    last = max(min(-(-(span.end_us - begin_us) * width // length_us), width), first + 1)
    bar = "█" * (last - first)
    # The bar of an operation in progress ends with an arrow.
    return " " * first + (bar[:-1] + "▶" if span.name.endswith(_OPEN) else bar)


def _duration(microseconds: int) -> str:
    if microseconds < 1_000:
        return f"{microseconds} µs"
    if microseconds < 1_000_000:
        return f"{microseconds / 1e3:.3g} ms"
    return f"{microseconds / 1e6:.1f} s"
