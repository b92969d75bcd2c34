"""Errors of any form in a log: messages of C++ exceptions, ends of launchers, and lines of loggers.

Such a message tells less than the findings of other readers, so most are used only if a log has no such findings.
Without these messages, a log with an error could pass for the log of a healthy job.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from otel_torchdist.model.rank_state.lives import name_signal
from otel_torchdist.sources.evidence.lines import LogLine, statement
from otel_torchdist.sources.evidence.statements import Statement, StatementKind
from otel_torchdist.sources.evidence.texts.process_groups import group_of, rank_of

MARKERS: Final = (
    b"  what():",
    b"SignalException: Process ",
    b"exits with return code = ",
    b"slurmstepd: error: ",
    b"Last error:",
    b" NCCL WARN ",
    b"Error: ",
    b"Exception: ",
    b".cpp:",
    b"Segmentation fault",
    b"(core dumped)",
    b"Out of memory: Killed process",
    b"oom-kill",
)
_WHAT: Final = re.compile(r"^\s*what\(\):\s+(?P<message>\S.*)")
_LAUNCHER: Final = re.compile(r"SignalException: Process (?P<pid>\d+) got signal: (?P<signal>\d+)")
_CHILD: Final = re.compile(r"exits with return code = (?P<code>-?\d+)")
_SLURM: Final = re.compile(r"slurmstepd: error: (?P<message>.+)")
_NCCL: Final = re.compile(r" NCCL WARN (?P<message>.+)")
_LOGGED: Final = re.compile(
    r"\[[EF]\d{0,4}(?: [\d:.]+)?\s+(?P<file>[\w/.+-]+\.(?:cpp|cc|cu|h)):\d+\] (?P<message>\S.*)"
)
_NAMED: Final = re.compile(r"(?:^|[\s(])(?P<type>(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception)): (?P<message>\S.*)")
_SYSTEM: Final = re.compile(r"Segmentation fault|\(core dumped\)|Out of memory: Killed process|oom-kill")
_NUMBER: Final = re.compile(r"[-+]?[\d.]+(?:e[-+]?\d+)?%?(?:\W|$)")
"""Matches a metric's value: `MeanSquaredError: 0.25` is not an error."""
_LAST: Final = "Last error:"
_NO_CAUSE: Final = ("Some NCCL operations have failed", "To avoid data inconsistency", "Stack trace of the failed")
MAX_OPEN: Final = 64
"""Upper bound on the ranks whose next line is awaited."""
MAX_FOREIGN: Final = 64
"""Lines of other ranks after which a line is not awaited any more."""


class UnstructuredErrors:
    """Reader of errors in the lines of one file."""

    def __init__(self, path: str) -> None:
        """Begin at the start of a file."""
        self._path = path
        self._awaited: dict[tuple[str, int | None], int] = {}

    @property
    def needs_next_line(self) -> bool:
        """Whether the next line is needed: it contains NCCL's last error."""
        return bool(self._awaited)

    def read(self, line: LogLine) -> Iterator[Statement]:
        """Yield the statements of a line about the end of a process."""
        key = line.label, line.rank
        if key in self._awaited:
            del self._awaited[key]
            if line.body.strip():
                yield statement(line, self._path, StatementKind.ERROR, f"NCCL's last error: {line.body.strip()}")
        elif self._awaited:
            self._awaited = {author: lines_left - 1 for author, lines_left in self._awaited.items() if lines_left > 1}
        if line.body.strip().endswith(_LAST) and len(self._awaited) < MAX_OPEN:
            self._awaited[key] = MAX_FOREIGN
        exception = _WHAT.match(line.body)
        if exception is not None:
            rank = rank_of(line, group_of(exception["message"]))
            text = f"terminated by a C++ exception: {exception['message']}"
            yield replace(statement(line, self._path, StatementKind.CRASHED, text), rank=rank)
        launcher = _LAUNCHER.search(line.text)
        if launcher is not None:
            name = name_signal(int(launcher["signal"]))
            ended = statement(line, self._path, StatementKind.ENDED, f"is a launcher, and was ended by {name}")
            yield replace(ended, pid=int(launcher["pid"]), rank=None)
        child = _CHILD.search(line.text)
        if child is not None and int(child["code"]):
            code = int(child["code"])
            how = f"exit code {code}" if code > 0 else name_signal(-code)
            ended = statement(line, self._path, StatementKind.ENDED, f"a rank ended with {how}")
            yield replace(ended, label=ended.label or "the launcher")
        slurm = _SLURM.search(line.text)
        if slurm is not None:
            ended = statement(line, self._path, StatementKind.ENDED, slurm["message"])
            yield replace(ended, label=ended.label or "Slurm")

    def unknown_error(self, line: LogLine) -> Iterator[Statement]:
        """Yield an error of unknown kind, for a log without other findings."""
        logged = _NCCL.search(line.text) or _LOGGED.search(line.text)
        text = logged["message"] if logged is not None else ""
        if logged is None and (named := _NAMED.search(line.body)) is not None and not _NUMBER.match(named["message"]):
            text = f"{named['type']}: {named['message']}"
        if not text and _SYSTEM.search(line.text) is not None:
            text = line.body.strip()
        if text and not text.lstrip().startswith(_NO_CAUSE):
            yield statement(line, self._path, StatementKind.ERROR, text)
