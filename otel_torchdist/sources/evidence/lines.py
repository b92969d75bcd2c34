"""A line of a log: which rank wrote it, and what its launcher and its loggers put before the text."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from otel_torchdist.model.naming import readable
from otel_torchdist.sources.evidence.facts import Fact
from otel_torchdist.sources.evidence.statements import MAX_TEXT, Statement, StatementKind, TextSource

MAX_LINE: Final = 8_192
"""Bytes of a line that are looked at."""
_COLORS: Final = re.compile(r"\x1b\[[0-9;:?]*[A-Za-z]")
_RANK: Final = re.compile(r"\[rank(\d{1,7})\]:")  # c10's logger, and torch's excepthook
_OWN: Final = re.compile(r"\[rank\d{1,7}\]: ?")
_DAY: Final = r"\d{4}-\d\d-\d\d[T _]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?"
_CLOCK: Final = re.compile(
    rf"(?P<day>{_DAY})|\[[EFWI](?P<glog>\d{{3,4}} \d\d:\d\d:\d\d\.\d+)|\b[EFWI](?P<python>\d{{4}} \d\d:\d\d:\d\d\.\d+)"
)
_BEFORE: Final = re.compile(rf"\s*\[?{_DAY}\]?\s+(?:std(?:out|err) [FP] )?|\s*\d\d:\d\d:\d\d(?:\.\d+)? ")
"""What `kubectl logs --timestamps`, CRI and log shippers put before everything."""
_LABELS: Final = re.compile(
    r"\s*(?:\[(?!rank\d)[A-Za-z_.-]+(?P<local>\d{1,7})\]:"  # torchrun: role and local rank
    r"|\[\d{1,7},\d{1,7}\]<std(?:out|err)>:"  # Open MPI: job and rank
    r"|\d{1,7}: "  # srun --label: task
    r"|\([\w.:-]+ (?:rank=\d+, )?pid=(?P<pid>\d{1,9})[^)\n]{0,80}\) "  # Ray
    r"|[\w./-]{1,80}\s*\| )"  # docker compose, stern
)


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line that is of interest.

    Attributes:
        number: From 1.
        text: The line without colors; undecodable bytes are replaced.
        body: What follows the prefixes of launcher and torch, with its indentation.
        rank: The last rank that a logger of torch states on it.
        label: What the launcher put before it, or ''.
        local_rank: The local rank within that label.
        pid: The process id within that label.
        time: The first time on the line, as written, or ''.
    """

    number: int
    text: str
    body: str
    rank: int | None
    label: str
    local_rank: int | None
    pid: int | None
    time: str


@dataclass(frozen=True, slots=True)
class LineFormat:
    """A tool's lines, each of which says something by itself.

    Attributes:
        markers: Phrases, of which each such line contains one.
        read: Yields the statements of a line of a file with a path; none for a line of another format.
    """

    markers: tuple[bytes, ...]
    read: Callable[[LogLine, str], Iterator[Statement]]


def statement(line: LogLine, path: str, kind: StatementKind, text: str, fact: Fact | None = None) -> Statement:
    """State a fact about the rank that a line names; `text` may be any characters of the line."""
    return Statement(
        kind=kind,
        source=TextSource(path, line.number),
        text=readable(text, MAX_TEXT),
        rank=line.rank,
        local_rank=line.local_rank,
        pid=line.pid,
        fact=fact,
        time=line.time,
        label=line.label,
    )


def parsed(number: int, content: bytes) -> LogLine:
    """Parse a line; any bytes will do."""
    text = _COLORS.sub("", content[:MAX_LINE].decode("utf-8", "replace")).rstrip("\r\n")
    before = _BEFORE.match(text)
    start = before.end() if before else 0
    found = _LABELS.match(text, start)
    start = found.end() if found else start
    own = _OWN.match(text, start)
    ranks = _RANK.findall(text)
    clock = _CLOCK.search(text)
    return LogLine(
        number=number,
        text=text,
        body=text[own.end() if own else start :],
        rank=int(ranks[-1]) if ranks else None,
        label=found[0].strip() if found else "",
        local_rank=_number(found, "local"),
        pid=_number(found, "pid"),
        time=next(filter(None, clock.groups()), "") if clock else "",
    )


def _number(found: re.Match[str] | None, name: str) -> int | None:
    return int(found[name]) if found is not None and found[name] else None
