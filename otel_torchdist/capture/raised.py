"""Describes the exception that ends a rank: its type, the line of the program that has raised it, and what it says."""

from __future__ import annotations

import traceback
from typing import Final

from otel_torchdist.capture.call_sites import site_of
from otel_torchdist.code_owner import innermost
from otel_torchdist.model.names import RaisedName

MAX_SHOWN: Final = 160


def describe_raised(error: BaseException) -> RaisedName:
    """Describe an exception; one that says nothing, or cannot be shown as text, has an empty message."""
    frames = [(frame.f_code, line) for frame, line in traceback.walk_tb(error.__traceback__)][::-1]
    place = innermost((code.co_filename, code.co_name) for code, _ in frames)
    kind = type(error).__qualname__
    if place is None:
        return RaisedName(kind, _first_line(error))
    site = site_of(*frames[place])
    return RaisedName(kind, _first_line(error), site.function, site.file, site.line)


def _first_line(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception:  # the program's own method
        return ""
    return text.strip().partition("\n")[0].rstrip(" .:")[:MAX_SHOWN]
