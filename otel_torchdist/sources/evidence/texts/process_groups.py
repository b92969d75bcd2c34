"""Lines of PyTorch's process groups: NCCL's watchdog, the desync report, fingerprints of calls, and errors of gloo."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from otel_torchdist.model.collectives import operation_named
from otel_torchdist.model.naming import readable
from otel_torchdist.sources.evidence.facts import Behind, Called, Fact, GroupMark, Mismatched, Reached, TimedOut
from otel_torchdist.sources.evidence.lines import LineFormat, LogLine, statement
from otel_torchdist.sources.evidence.statements import MAX_TEXT, Statement, StatementKind, TextSource

# Lines of NCCL's watchdog and heartbeat monitor, as `ProcessGroupNCCL.cpp` has written them since torch 1.13. The
# process groups of other devices that were made after it (XCCL, HCCL, …) write the same lines. What stands before
# the text has changed: `[Rank 3]` until 2.2, `[PG 1 Rank 3]` in 2.3, `[PG 0 (default_pg) Rank 3]` in 2.4 and
# `[PG ID 0 PG GUID 0(default_pg) Rank 3]` since 2.5. `Rank` there is the rank within the group.

_GROUP: Final = re.compile(
    r"\[(?:PG (?:ID \d+ PG GUID (?P<uid>[^\s(\]]*)|(?P<old>[^\s(\]]+))\s?(?:\((?P<description>[^)]{0,512})\))? )?"
    r"Rank (?P<rank>\d{1,7})\]"
)
_WATCHDOG_TIMEOUT: Final = re.compile(
    r"Watchdog caught collective operation timeout: Work\w+\((?:SeqNum=(?P<sequence>\d+), )?OpType=(?P<operation>\w+)"
    r"(?:, TensorShape=\[[^][]*\])?(?:, NumelIn=(?P<numel_in>\d+), NumelOut=\d+)?"
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


def _of_watchdog(line: LogLine, path: str) -> Iterator[Statement]:
    """Yield what a line of a watchdog says; nothing if it is not one."""
    found = _WATCHDOG_TIMEOUT.search(line.text)
    if found is not None:
        yield _of_group(line, path, StatementKind.TIMED_OUT, found, _timed_out(found))
    found = _PROGRESS.search(line.text)
    if found is not None and _PERIODICAL not in line.text:
        yield _of_group(line, path, StatementKind.PROGRESS, found, _reached(found))
    found = _STUCK.search(line.text)
    if found is not None:
        yield _of_group(line, path, StatementKind.WATCHDOG_STUCK, found, None)


def _of_group(line: LogLine, path: str, kind: StatementKind, found: re.Match[str], fact: Fact | None) -> Statement:
    group = group_of(line.text[: found.start()])
    return replace(statement(line, path, kind, found[0], fact), rank=rank_of(line, group), group=group)


def rank_of(line: LogLine, group: GroupMark | None) -> int | None:
    """Return the rank that has written a line: of the default group the number in it is that."""
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
    """Return the operation that torch calls `ALLREDUCE`, as users know it."""
    return operation_named(type_name.lower())


def _timed_out(found: re.Match[str]) -> TimedOut:
    return TimedOut(
        operation=operation_of(found["operation"]),
        sequence=_number(found["sequence"]),
        elements_in=_number(found["numel_in"]),
        age_ms=int(found["age"]),
        timeout_ms=int(found["timeout"]),
    )


def _reached(found: re.Match[str]) -> Reached:
    enqueued, completed = int(found["enqueued"]), int(found["completed"])
    # torch 2.3 printed an uninitialized number where nothing had completed.
    return Reached(enqueued, completed if completed <= enqueued else _NONE, _number(found["failed"]))


def _number(text: str | None) -> int | None:
    return int(text) if text is not None else None


WATCHDOG: Final = LineFormat((b"atchdog ", b"ast enqueued", b"eartbeat monitor timed out"), _of_watchdog)


# PyTorch's desync report (`TORCH_NCCL_DESYNC_DEBUG`). The ranks' watchdogs leave in the store what they have started
# and finished last; the one that times out first reads it and says who is behind. `TraceUtils.h` has written it in
# the same words since torch 1.11. Numbers are ranks of the group that timed out, which the report itself does not
# name.

_NEVER: Final = re.compile(r"ranks \[(?P<ranks>[\d, ]+)\] are the lagging ranks that caused this timeout")
_UNFINISHED: Final = re.compile(r"\[(?P<ranks>[\d, ]+)\] joined but didn't finish collective #(?P<sequence>\d+)")
_BEHIND: Final = re.compile(
    r"\[(?P<ranks>[\d, ]+)\] finished collective #(?P<last>\d+), but didn't join collective #(?P<sequence>\d+)"
)
MAX_RANKS: Final = 4_096


def _of_desync(line: LogLine, path: str) -> Iterator[Statement]:
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


DESYNC: Final = LineFormat(
    (b"finish collective #", b"finished collective #", b"They never joined any collectives"), _of_desync
)


# Fingerprints, as `TORCH_DISTRIBUTED_DEBUG=DETAIL` compares them before each collective. Each rank raises, with its
# own call and that of the first rank that differs. What it says of the other is right only where both call the same
# operation: of others, torch up to 2.15 reads the wrong bytes.

TITLE: Final = "Detected mismatch between collectives on ranks"
_CALL: Final = re.compile(
    r"Rank (?P<rank>\d{1,7}) is running (?:inconsistent )?collective: CollectiveFingerPrint\("
    r"(?:SequenceNumber=(?P<sequence>\d+))?(?:, )?OpType=(?P<operation>\w+)"
    r"(?:, TensorShape=\[(?P<shape>[\d, ]*)\], TensorDtypes=(?P<dtype>[\w ,]*), TensorDeviceTypes=)?"
)


def _of_fingerprints(line: LogLine, path: str) -> Iterator[Statement]:
    """Yield the calls that a line compares; nothing if it compares none."""
    if TITLE not in line.text:
        return
    calls = tuple(_called(found) for found in _CALL.finditer(line.text))[:2]
    if not calls:
        return
    text = f"{TITLE}: rank {calls[0].rank} calls {calls[0].text}"
    yield statement(
        line, path, StatementKind.DIFFERENT_CALLS, text, Mismatched(calls[0], calls[1] if len(calls) > 1 else None)
    )


def _called(found: re.Match[str]) -> Called:
    shape = found["shape"]
    return Called(
        rank=int(found["rank"]),
        operation=operation_of(found["operation"]),
        sequence=int(found["sequence"]) if found["sequence"] else None,
        shape=None if shape is None else readable(f"[{', '.join(shape.replace(',', ' ').split())}]", MAX_TEXT),
        dtype=readable((found["dtype"] or "").lower(), MAX_TEXT),
    )


FINGERPRINTS: Final = LineFormat((TITLE.encode(),), _of_fingerprints)


_GLOO_ERROR: Final = re.compile(r"\[[^\[\]\s]*gloo/transport/\w+/[\w.]+:\d+\] (?P<what>.+)")
_GLOO_TIMEOUT: Final = re.compile(
    r"Timed out waiting (?P<timeout>\d+)ms for (?P<operation>send|recv) operation to complete"
)
_GLOO_TIMEOUTS: Final = ("Application timeout", "Read timeout", "Write timeout")
_BARRIER: Final = re.compile(r"Ranks? (?P<ranks>\d+(?:, \d+)*) failed to pass monitoredBarrier in (?P<timeout>\d+) ms")


def _of_gloo(line: LogLine, path: str) -> Iterator[Statement]:
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
    error = _GLOO_ERROR.search(line.text)
    if error is None:
        return
    what = error["what"]
    kind = StatementKind.TIMED_OUT if _is_gloo_timeout(what) else StatementKind.CONNECTION_LOST
    yield statement(line, path, kind, f"gloo: {what}", _gloo_fact(what))


def _is_gloo_timeout(what: str) -> bool:
    return _GLOO_TIMEOUT.match(what) is not None or what.startswith(_GLOO_TIMEOUTS)


def _gloo_fact(what: str) -> Fact | None:
    found = _GLOO_TIMEOUT.match(what)
    # Sends and receives are gloo's own: every collective consists of them.
    return TimedOut("", None, None, None, int(found["timeout"])) if found is not None else None


GLOO: Final = LineFormat((b"gloo/transport/", b"onitoredBarrier"), _of_gloo)
