"""The rank in a dump's name: torch writes `<prefix><rank>`, with whatever prefix was configured."""

from __future__ import annotations

import re
from typing import Final

from otel_torchdist.tape.layout import MAX_RANKS

_ENDINGS: Final = frozenset(
    {"json", "et", "pkl", "pickle", "p", "bin", "pt", "dump", "trace", "log", "txt", "gz", "fr"}
)
_PATTERNS: Final = (
    re.compile(r"rank[-_.= ]?(\d{1,7})(?!\d)", re.IGNORECASE),
    re.compile(r"dump[-_.](\d{1,7})$", re.IGNORECASE),
    re.compile(r"(?<!\d)(\d{1,7})$"),
    re.compile(r"^(\d{1,7})(?!\d)"),
)


def rank_in(name: str) -> int | None:
    """The rank that a file's name states, as in `nccl_trace_rank_3`, `_dump_3` or `rank3.json`; None for none."""
    stem = _without_endings(name)
    for pattern in _PATTERNS:
        found = pattern.findall(stem)
        if found and int(found[-1]) < MAX_RANKS:
            return int(found[-1])
    return None


def _without_endings(name: str) -> str:
    stem, dot, ending = name.rpartition(".")
    while dot and ending.lower() in _ENDINGS:
        name = stem
        stem, dot, ending = name.rpartition(".")
    return name
