"""PyTorch's desync report (`TORCH_NCCL_DESYNC_DEBUG`), in which a watchdog names the ranks that hold up the others.

The ranks' watchdogs leave in the store what they have started and finished last; the one that times out first reads it
and says who is behind. `TraceUtils.h` has written it in the same words since torch 1.11. Numbers are ranks of the group
that timed out, which the report itself does not name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from otel_torchdist.evidence.lines import LogLine, statement
from otel_torchdist.evidence.model import Behind, Statement, StatementKind

MARKERS: Final = (b"finish collective #", b"finished collective #", b"They never joined any collectives")
_NEVER: Final = re.compile(r"ranks \[(?P<ranks>[\d, ]+)\] are the lagging ranks that caused this timeout")
_UNFINISHED: Final = re.compile(r"\[(?P<ranks>[\d, ]+)\] joined but didn't finish collective #(?P<sequence>\d+)")
_BEHIND: Final = re.compile(
    r"\[(?P<ranks>[\d, ]+)\] finished collective #(?P<last>\d+), but didn't join collective #(?P<sequence>\d+)"
)
MAX_RANKS: Final = 4_096


def statements_of(line: LogLine, path: str) -> Iterator[Statement]:
    """Yield what a line of the report says about the ranks that it names; nothing if it names none."""
    found = _BEHIND.search(line.text)
    text = "has finished #{last} of its group, but has not joined #{sequence}"
    if found is None:
        found, text = _UNFINISHED.search(line.text), "has joined #{sequence} of its group, but has not finished it"
    if found is None:
        found, text = _NEVER.search(line.text), "has never joined an operation of its group"
    if found is None:
        return
    places = {name: value for name, value in found.groupdict().items() if name != "ranks"}
    ranks = tuple(int(rank) for rank in found["ranks"].replace(",", " ").split())[:MAX_RANKS]
    said = f"{text.format(**places)}, says PyTorch's desync report"
    yield statement(line, path, StatementKind.DESYNC, said, Behind(ranks))
