"""Reads the options of `export` that choose what is written."""

from __future__ import annotations

import re
from typing import Final

import typer

from otel_torchdist.flight.export.selection import ExportChoice

_LAST: Final = re.compile(r"([0-9]{1,9})(ms|s|m|h)?")
_UNITS_NS: Final = {"ms": 1_000_000, "s": 1_000_000_000, "m": 60_000_000_000, "h": 3_600_000_000_000}


def choice_of(kinds: str, last: str) -> ExportChoice:
    """Return what `--kinds` and `--last` choose.

    Raises:
        typer.BadParameter: `last` is no number above 0 and no duration.
    """
    names = tuple(name.strip() for name in kinds.split(",") if name.strip())
    if not last:
        return ExportChoice(names)
    found = _LAST.fullmatch(last.strip())
    if found is None or not int(found[1]):
        raise typer.BadParameter(
            f"{last!r}: expected a number of calls, such as 2000, or a time, such as 500ms, 60s, 5m or 1h",
            param_hint="--last",
        )
    if found[2] is None:
        return ExportChoice(names, newest=int(found[1]))
    return ExportChoice(names, within_ns=int(found[1]) * _UNITS_NS[found[2]])


def newest_of(last: str) -> int | None:
    """Return how many of the newest calls `--last` chooses; None for the usual number.

    Raises:
        typer.BadParameter: It is no number above 0.
    """
    if not last:
        return None
    found = _LAST.fullmatch(last.strip())
    if found is None or found[2] is not None or not int(found[1]):
        raise typer.BadParameter(f"{last!r}: expected a number of calls, such as 2000", param_hint="--last")
    return int(found[1])


def time_of(text: str) -> int | None:
    """Return the time in nanoseconds that `--around` names; None for all.

    Raises:
        typer.BadParameter: It is no duration above 0.
    """
    if not text:
        return None
    found = _LAST.fullmatch(text.strip())
    if found is None or found[2] is None or not int(found[1]):
        raise typer.BadParameter(f"{text!r}: expected a time, such as 500ms, 60s, 5m or 1h", param_hint="--around")
    return int(found[1]) * _UNITS_NS[found[2]]
