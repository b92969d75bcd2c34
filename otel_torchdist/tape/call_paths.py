"""Call paths as lines of text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath

from otel_torchdist.tape.names import Names
from otel_torchdist.tape.records import CallSiteName


def shown_path(names: Names, call_site: int) -> tuple[str, ...]:
    """Return the frames that led to a call, innermost first; empty if they are not known.

    Args:
        names: The dictionary.
        call_site: Name id of the call site.

    Returns:
        `train.py:42 step` for a line of the program, `… lightning, torch …` for the frames of libraries.
    """
    path = names.call_path(call_site)
    return tuple(_texts(names, (call_site, *path.frames))) if path is not None else ()


def _texts(names: Names, frames: tuple[int, ...]) -> Iterator[str]:
    for identity in frames:
        name = names.get(identity)
        if isinstance(name, CallSiteName):
            yield f"{PurePath(name.file).name}:{name.line} {name.function}"
        elif isinstance(name, str):
            yield name
