"""What distinguishes rows, and in which order they are shown."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

import typer

from otel_torchdist.statistics.grouping import Part
from otel_torchdist.statistics.model import Row


class Order(str, Enum):
    """What comes first."""

    TIME = "time"
    CALLS = "calls"
    BYTES = "bytes"
    WAIT = "wait"
    MEDIAN = "median"
    NAME = "name"


def ordered(rows: Iterable[Row], order: Order) -> tuple[Row, ...]:
    """Return rows in an order: by name ascending, else the largest first."""
    by_name = tuple(sorted(rows, key=_name))
    if order is Order.NAME:
        return by_name
    return tuple(sorted(by_name, key=lambda row: _measure(row, order), reverse=True))


def _measure(row: Row, order: Order) -> int:
    if order is Order.CALLS:
        return row.calls
    if order is Order.BYTES:
        return row.message_bytes
    if order is Order.WAIT:
        return row.wait_ns
    return (row.median_ns or 0) if order is Order.MEDIAN else row.time_ns


def _name(row: Row) -> tuple[object, ...]:
    group, site = row.group, row.call_site
    return (
        group.name if group is not None else "",
        group.key if group is not None else "",
        row.operation or "",
        row.size_class or "",
        (site.function, site.file, site.line) if site is not None else (),
        row.rank or 0,
        row.phase or "",
    )


def parts_of(text: str) -> tuple[Part, ...]:
    """Return what distinguishes rows, from a list such as `operation,site`.

    Raises:
        typer.BadParameter: A word in it means nothing.
    """
    known = {part.value: part for part in Part}
    words = [word.strip() for word in text.split(",") if word.strip()]
    wrong = next((word for word in words if word not in known), None)
    if wrong is not None or not words:
        raise typer.BadParameter(f"{wrong or text!r}: a list of {', '.join(known)} is expected", param_hint="--by")
    return tuple(known[word] for word in words)
