"""Parses a log line: the rank that wrote it, and the prefixes of its launcher and loggers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from otel_torchdist.model.text import readable
from otel_torchdist.sources.evidence.facts import Fact
from otel_torchdist.sources.evidence.statements import MAX_TEXT, Statement, StatementKind, TextSource

MAX_LINE: Final = 8_192
"""Bytes of a line that are parsed."""
_COLORS: Final = re.compile(r"\x1b\[[0-9;:?]*[A-Za-z]")
_RANK: Final = re.compile(r"\[rank(\d{1,7})\]:")  # c10's logger, and torch's excepthook
_RANK_PREFIX: Final = re.compile(r"\[rank\d{1,7}\]: ?")
_DAY: Final = r"\d{4}-\d\d-\d\d[T _]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?"
_CLOCK: Final = re.compile(
    rf"(?P<day>{_DAY})|\[[EFWI](?P<glog>\d{{3,4}} \d\d:\d\d:\d\d\.\d+)|\b[EFWI](?P<python>\d{{4}} \d\d:\d\d:\d\d\.\d+)"
)
_BEFORE: Final = re.compile(rf"\s*\[?{_DAY}\]?\s+(?:std(?:out|err) [FP] )?|\s*\d\d:\d\d:\d\d(?:\.\d+)? ")
"""Leading timestamps of `kubectl logs --timestamps`, CRI and log shippers."""
_LABELS: Final = re.compile(
    r"\s*(?:\[(?!rank\d)[A-Za-z_.-]+(?P<local>\d{1,7})\]:"  # torchrun: role and local rank
    r"|\[\d{1,7},\d{1,7}\]<std(?:out|err)>:"  # Open MPI: job and rank
    r"|\d{1,7}: "  # srun --label: task
    r"|\([\w.:-]+ (?:rank=\d+, )?pid=(?P<pid>\d{1,9})[^)\n]{0,80}\) "  # Ray
    r"|[\w./-]{1,80}\s*\| )"  # docker compose, stern
)


@dataclass(frozen=True, slots=True)
class LogLine:
    """A parsed log line.

    Attributes:
        number: Line number, from 1.
        text: The line without colors; undecodable bytes are replaced.
        body: The text behind the prefixes of launcher and torch, with its indentation.
        rank: The last rank in a prefix of a torch logger; None without one.
        label: The launcher's prefix, or ''.
        local_rank: The local rank in the label; None without one.
        pid: The process id in the label; None without one.
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
    """A format with one statement per line.

    Attributes:
        markers: Phrases. Each line of the format contains at least one.
        read: Yields the statements of a line, given the path of its file; none for a line of another format.
    """

    markers: tuple[bytes, ...]
    read: Callable[[LogLine, str], Iterator[Statement]]


def statement(line: LogLine, path: str, kind: StatementKind, text: str, fact: Fact | None = None) -> Statement:
    """Return a statement about the rank of a line. `text` need not be sanitized."""
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
    """Parse a line of arbitrary bytes."""
    text = _COLORS.sub("", content[:MAX_LINE].decode("utf-8", "replace")).rstrip("\r\n")
    before = _BEFORE.match(text)
    start = before.end() if before else 0
    label = _LABELS.match(text, start)
    start = label.end() if label else start
    prefix = _RANK_PREFIX.match(text, start)
    ranks = _RANK.findall(text)
    clock = _CLOCK.search(text)
    return LogLine(
        number=number,
        text=text,
        body=text[prefix.end() if prefix else start :],
        rank=int(ranks[-1]) if ranks else None,
        label=label[0].strip() if label else "",
        local_rank=_number(label, "local"),
        pid=_number(label, "pid"),
        time=next(filter(None, clock.groups()), "") if clock else "",
    )


def _number(match: re.Match[str] | None, name: str) -> int | None:
    return int(match[name]) if match is not None and match[name] else None
