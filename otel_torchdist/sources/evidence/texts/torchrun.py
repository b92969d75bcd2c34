"""Reports of torchrun on failed ranks: a line for the first failure, and a final table of all failures.

`ChildFailedError` (`torch/distributed/elastic/multiprocessing/errors`) writes the table, unchanged since torch 1.9.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Final

from otel_torchdist.model.text import readable
from otel_torchdist.node.processes.endings import decoded_error
from otel_torchdist.sources.evidence.facts import ProcessExit, ReportedException, exit_from_code
from otel_torchdist.sources.evidence.lines import LogLine, parsed
from otel_torchdist.sources.evidence.statements import MAX_TEXT, Statement, StatementKind, TextSource
from otel_torchdist.sources.evidence.texts.python_stacks import PythonStacks

MARKERS: Final = (b"exitcode: ", b"Failures:", b"srun: error: ")
MAX_TABLE: Final = 200_000
"""Upper bound on the lines of a table. Each rank has six lines and its traceback."""
_FAILED: Final = re.compile(r"failed \(exitcode: (?P<code>-?\d+)\) local_rank: (?P<local>\d+) \(pid: (?P<pid>\d+)\)")
_FIELD: Final = re.compile(r"\s*(?P<name>time|host|rank|exitcode|error_file|traceback)\s*: (?P<value>.*)")
_RANK: Final = re.compile(r"(?P<rank>\d+) \(local_rank: (?P<local>\d+)\)")
_CODE: Final = re.compile(r"(?P<code>-?\d+) \(pid: (?P<pid>\d+)\)")
_FAILURE_HEAD: Final = re.compile(r"\s*\[\d+\]:\s*$")
_BORDER: Final = re.compile(r"\s*=+\s*$")
_OF_TABLE: Final = re.compile(r"  |\s*$|\[\d+\]:\s*$|=+\s*$|-+\s*$|Root Cause")
_SLURM: Final = re.compile(r"srun: error: (?P<host>\S+): tasks? (?P<task>[\d,-]+): (?P<how>.+)")
_NO_FILE: Final = "<N/A>"


@dataclass
class _Failure:
    """One failed rank in a table.

    Attributes:
        line: Line number of its first line.
        fields: Its fields by name.
        error: First line of its exception, or ''.
    """

    line: int
    fields: dict[str, str] = field(default_factory=dict[str, str])
    error: str = ""


class TorchrunReports:
    """Reader of torchrun's reports in the lines of one file."""

    def __init__(self, path: str) -> None:
        """Begin at the start of a file."""
        self._path = path
        self._lines_left = 0
        self._label: str = ""
        self._is_root_cause = False
        self._failure: _Failure | None = None

    @property
    def needs_next_line(self) -> bool:
        """Whether the next line may belong to a table."""
        return self._lines_left > 0

    def is_in_table(self, line: LogLine) -> bool:
        """Return whether a line is part of a table. Tracebacks in a table are of ranks, not of the launcher."""
        return self._lines_left > 0 and line.label == self._label and _OF_TABLE.match(line.body) is not None

    def read(self, line: LogLine) -> Iterator[Statement]:
        """Read a line, and yield the statements that it completes."""
        if self.is_in_table(line):
            yield from self._in_table(line)
            return
        if self._lines_left and line.label == self._label:
            yield from self.end()
        if line.body.strip() == "Failures:":
            self._lines_left, self._label, self._is_root_cause, self._failure = MAX_TABLE, line.label, False, None
            return
        failed = _FAILED.search(line.text)
        if failed is not None:
            fact = exit_from_code(int(failed["code"]))
            pid, local_rank = int(failed["pid"]), int(failed["local"])
            yield self._statement(line.number, failed[0], fact, local_rank=local_rank, pid=pid, time=line.time)
        slurm = _SLURM.search(line.text)
        if slurm is not None:  # a Slurm task may be a rank or a node
            yield self._statement(line.number, slurm[0], None, time=line.time)

    def end(self) -> Iterator[Statement]:
        """Yield the last failure at the end of the file or table."""
        yield from self._close()
        self._lines_left = 0

    def _in_table(self, line: LogLine) -> Iterator[Statement]:
        self._lines_left -= 1
        if _BORDER.match(line.body) or not self._lines_left:
            yield from self.end()
        elif _FAILURE_HEAD.match(line.body):
            yield from self._close()
            self._failure = _Failure(line.number)
        elif line.body.startswith("Root Cause"):
            yield from self._close()
            self._is_root_cause = True
        elif self._failure is not None:
            self._add_line(self._failure, line)

    @staticmethod
    def _add_line(failure: _Failure, line: LogLine) -> None:
        entry = _FIELD.match(line.body)
        if entry is not None and "traceback" not in failure.fields:
            failure.fields[entry["name"]] = entry["value"].strip()
        elif "Traceback (most recent call last)" in line.body:
            failure.error = ""
        # The traceback is indented by two, and its exception is the first line that is not indented further.
        elif not failure.error and line.body.startswith("  ") and line.body[2:3].strip():
            failure.error = line.body.strip()

    def _close(self) -> Iterator[Statement]:
        failure, self._failure = self._failure, None
        if failure is None:
            return
        rank, code = _RANK.match(failure.fields.get("rank", "")), _CODE.match(failure.fields.get("exitcode", ""))
        if rank is None or code is None:
            return
        error_file = failure.fields.get("error_file", _NO_FILE)
        fact = exit_from_code(
            int(code["code"]),
            is_first=self._is_root_cause,
            error_file="" if error_file == _NO_FILE else readable(error_file),
            error=readable(failure.error, MAX_TEXT),
        )
        host = failure.fields.get("host", "")
        text = f"rank {rank['rank']} on {host} (pid {code['pid']}): {fact.outcome}"
        yield self._statement(
            failure.line,
            text,
            fact,
            rank=int(rank["rank"]),
            local_rank=int(rank["local"]),
            pid=int(code["pid"]),
            time=failure.fields.get("time", ""),
        )

    def _statement(
        self,
        number: int,
        text: str,
        fact: ProcessExit | None,
        rank: int | None = None,
        local_rank: int | None = None,
        pid: int | None = None,
        time: str = "",
    ) -> Statement:
        return Statement(
            kind=StatementKind.ENDED,
            source=TextSource(self._path, number),
            text=readable(text, MAX_TEXT),
            rank=rank,
            local_rank=local_rank,
            pid=pid,
            fact=fact,
            time=readable(time, MAX_TEXT),
        )


MAX_ERROR_BYTES: Final = 1 << 20
_LOCAL_RANK: Final = "attempt_"


def statement_of_error_file(content: bytes, path: str) -> Statement | None:
    """Parse torchelastic's error file, the exception that ended a rank, as JSON. Return None for other files."""
    error = decoded_error(content)
    if error is None:
        return None
    text = readable(error.summary, MAX_TEXT)
    stack = _raised_in(error.extraInfo.py_callstack, path)
    return Statement(
        kind=StatementKind.RAISED,
        source=TextSource(path, 0),
        text=text,
        local_rank=_local_rank(path),
        fact=ReportedException(text, stack.frames if stack is not None else ()),
        time=readable(str(error.extraInfo.timestamp), MAX_TEXT),
    )


def _raised_in(traceback: str, path: str) -> ReportedException | None:
    stacks = PythonStacks(path)
    lines = (parsed(0, line.encode("utf-8", "replace")) for line in traceback.splitlines())
    facts = [statement.fact for line in lines for statement in stacks.read(line)]
    raised = [fact for fact in facts if isinstance(fact, ReportedException)]
    return raised[-1] if raised else None


def _local_rank(path: str) -> int | None:
    """Return the local rank in torchrun's path `<run>/attempt_<n>/<local rank>/error.json`; None for other paths."""
    parts = PurePath(path).parts
    if len(parts) < 3 or not parts[-3].startswith(_LOCAL_RANK) or not parts[-2].isdecimal():
        return None
    return int(parts[-2])
