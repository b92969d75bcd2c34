"""Reads the options that are lists."""

from __future__ import annotations

import typer

from otel_torchdist.statistics.grouping import Part


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
