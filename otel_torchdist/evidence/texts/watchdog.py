"""Lines of NCCL's watchdog and heartbeat monitor, as `ProcessGroupNCCL.cpp` has written them since torch 1.13.

The process groups of other devices that were made after it (XCCL, HCCL, …) write the same lines. What stands before
the text has changed: `[Rank 3]` until 2.2, `[PG 1 Rank 3]` in 2.3, `[PG 0 (default_pg) Rank 3]` in 2.4 and
`[PG ID 0 PG GUID 0(default_pg) Rank 3]` since 2.5. `Rank` there is the rank within the group.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from otel_torchdist.evidence.lines import LogLine, statement
from otel_torchdist.evidence.model import MAX_TEXT, Fact, GroupMark, Reached, Statement, StatementKind, TimedOut
from otel_torchdist.model.collectives import operation_named
from otel_torchdist.naming import readable

MARKERS: Final = (b"atchdog ", b"ast enqueued", b"eartbeat monitor timed out")
_GROUP: Final = re.compile(
    r"\[(?:PG (?:ID \d+ PG GUID (?P<uid>[^\s(\]]*)|(?P<old>[^\s(\]]+))\s?(?:\((?P<description>[^)]{0,512})\))? )?"
    r"Rank (?P<rank>\d{1,7})\]"
)
_TIMED_OUT: Final = re.compile(
    r"Watchdog caught collective operation timeout: Work\w+\((?:SeqNum=(?P<sequence>\d+), )?OpType=(?P<operation>\w+)"
    r"(?:, TensorShape=\[[^][]*\])?(?:, NumelIn=(?P<numel_in>\d+), NumelOut=(?P<numel_out>\d+))?"
    r", Timeout\(ms\)=(?P<timeout>\d+)\) ran for (?P<age>\d+) milliseconds before timing out"
)
_PROGRESS: Final = re.compile(
    r"(?:(?:work sequence id: |watchdog at work: |Timeout at NCCL work: )(?P<failed>\d+)(?: PG status:|,) )?"
    r"[Ll]ast enqueued (?:NCCL )?work: (?P<enqueued>-?\d+), last completed (?:NCCL )?work: (?P<completed>-?\d+)"
)
_STUCK: Final = re.compile(r"ProcessGroup\w{1,64}'s watchdog got stuck for \d+ seconds|Heartbeat monitor timed out!")
_NONE: Final = -1
_PERIODICAL: Final = "update periodically"
"""Such a line says how far a rank was at any time, not when something had timed out."""


def statements_of(line: LogLine, path: str) -> Iterator[Statement]:
    """Yield what a line of a watchdog says; nothing if it is not one."""
    found = _TIMED_OUT.search(line.text)
    if found is not None:
        yield _statement(line, path, StatementKind.TIMED_OUT, found, _timed_out(found))
    found = _PROGRESS.search(line.text)
    if found is not None and _PERIODICAL not in line.text:
        yield _statement(line, path, StatementKind.PROGRESS, found, _reached(found))
    found = _STUCK.search(line.text)
    if found is not None:
        yield _statement(line, path, StatementKind.WATCHDOG_STUCK, found, None)


def _statement(line: LogLine, path: str, kind: StatementKind, found: re.Match[str], fact: Fact | None) -> Statement:
    group = group_of(line.text[: found.start()])
    return replace(statement(line, path, kind, found[0], fact), rank=rank_of(line, group), group=group)


def rank_of(line: LogLine, group: GroupMark | None) -> int | None:
    """The rank that has written a line: of the default group the number in it is that."""
    return group.rank if line.rank is None and group is not None and group.is_default else line.rank


def group_of(before: str) -> GroupMark | None:
    """The most telling prefix before the text; the line on a thread's end has one for the group and one for the work.

    Only that of 2.4 and later names the group in the same way on all ranks.
    """
    marks = list(_GROUP.finditer(before))
    if not marks:
        return None
    best = max(marks, key=lambda mark: (mark["uid"] is not None or mark["old"] is not None, mark.start()))
    uid, description = best["uid"] or best["old"] or "", best["description"] or ""
    return GroupMark(readable(uid, MAX_TEXT), readable(description, MAX_TEXT), int(best["rank"]))


def operation_of(type_name: str) -> str:
    """The operation that torch calls `ALLREDUCE`, as users know it."""
    return operation_named(type_name.lower())


def _timed_out(found: re.Match[str]) -> TimedOut:
    return TimedOut(
        operation=operation_of(found["operation"]),
        sequence=_number(found["sequence"]),
        elements_in=_number(found["numel_in"]),
        elements_out=_number(found["numel_out"]),
        age_ms=int(found["age"]),
        timeout_ms=int(found["timeout"]),
    )


def _reached(found: re.Match[str]) -> Reached:
    enqueued, completed = int(found["enqueued"]), int(found["completed"])
    # torch 2.3 printed an uninitialized number where nothing had completed.
    return Reached(enqueued, completed if completed <= enqueued else _NONE, _number(found["failed"]))


def _number(text: str | None) -> int | None:
    return int(text) if text is not None else None
