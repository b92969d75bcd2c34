"""Errors of gloo, as they stand in the exceptions of ranks: which side gave up, and which lost its peer."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from otel_torchdist.evidence.lines import LogLine, statement
from otel_torchdist.evidence.model import Fact, GroupMark, Statement, StatementKind, TextSource, TimedOut

MARKERS: Final = (b"gloo/transport/", b"onitoredBarrier")
_ERROR: Final = re.compile(r"\[[^\[\]\s]*gloo/transport/\w+/[\w.]+:\d+\] (?P<what>.+)")
_TIMED_OUT: Final = re.compile(
    r"Timed out waiting (?P<timeout>\d+)ms for (?P<operation>send|recv) operation to complete"
)
_TIMEOUTS: Final = ("Application timeout", "Read timeout", "Write timeout")
_BARRIER: Final = re.compile(r"Ranks? (?P<ranks>\d+(?:, \d+)*) failed to pass monitoredBarrier in (?P<timeout>\d+) ms")
MAX_RANKS: Final = 4_096


def statements_of(line: LogLine, path: str) -> Iterator[Statement]:
    """Yield what a line with an error of gloo says; nothing if it is not one."""
    barrier = _BARRIER.search(line.text)
    if barrier is not None:
        for rank in barrier["ranks"].split(", ")[:MAX_RANKS]:
            # Numbers are those within the barrier's group, which the message does not name.
            yield Statement(
                kind=StatementKind.NOT_REACHED,
                source=TextSource(path, line.number),
                text=f"failed to pass monitored_barrier in {barrier['timeout']} ms",
                group=GroupMark("", "", int(rank)),
                time=line.time,
            )
    error = _ERROR.search(line.text)
    if error is None:
        return
    what = error["what"]
    kind = StatementKind.TIMED_OUT if _is_timeout(what) else StatementKind.CONNECTION_LOST
    yield statement(line, path, kind, f"gloo: {what}", _fact(what))


def _is_timeout(what: str) -> bool:
    return _TIMED_OUT.match(what) is not None or what.startswith(_TIMEOUTS)


def _fact(what: str) -> Fact | None:
    found = _TIMED_OUT.match(what)
    # Sends and receives are gloo's own: every collective consists of them.
    return TimedOut("", None, None, None, None, int(found["timeout"])) if found is not None else None
