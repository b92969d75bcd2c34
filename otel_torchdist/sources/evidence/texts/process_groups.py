"""Log lines of PyTorch's process groups: NCCL's watchdog, desync report, call fingerprints, and gloo errors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from otel_torchdist.model.collectives import operation_named
from otel_torchdist.model.text import readable
from otel_torchdist.sources.evidence.facts import (
    CallMismatch,
    Fact,
    FingerprintedCall,
    GroupMark,
    LaggingRanks,
    OperationTimeout,
    ReportedProgress,
)
from otel_torchdist.sources.evidence.lines import LineFormat, LogLine, statement
from otel_torchdist.sources.evidence.statements import MAX_TEXT, Statement, StatementKind, TextSource

# Lines of NCCL's watchdog and heartbeat monitor, written by `ProcessGroupNCCL.cpp` since torch 1.13. Process groups of
# other devices modelled on it (XCCL, HCCL, …) write the same lines. The prefix has changed: `[Rank 3]` until 2.2,
# `[PG 1 Rank 3]` in 2.3, `[PG 0 (default_pg) Rank 3]` in 2.4 and `[PG ID 0 PG GUID 0(default_pg) Rank 3]` since 2.5.
# `Rank` in the prefix is the rank within the group.

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
_NO_OPERATION: Final = -1
_PERIODICAL: Final = "update periodically"
"""Marks a periodic progress line, unrelated to a timeout."""


def _read_watchdog(line: LogLine, path: str) -> Iterator[Statement]:
    """Yield the statements of a watchdog's line; none for other lines."""
    match = _WATCHDOG_TIMEOUT.search(line.text)
    if match is not None:
        yield _statement_of_group(line, path, StatementKind.TIMED_OUT, match, _timed_out(match))
    match = _PROGRESS.search(line.text)
    if match is not None and _PERIODICAL not in line.text:
        yield _statement_of_group(line, path, StatementKind.PROGRESS, match, _reached(match))
    match = _STUCK.search(line.text)
    if match is not None:
        yield _statement_of_group(line, path, StatementKind.WATCHDOG_STUCK, match, None)


def _statement_of_group(
    line: LogLine, path: str, kind: StatementKind, match: re.Match[str], fact: Fact | None
) -> Statement:
    group = group_of(line.text[: match.start()])
    return replace(statement(line, path, kind, match[0], fact), rank=rank_of(line, group), group=group)


def rank_of(line: LogLine, group: GroupMark | None) -> int | None:
    """Return the global rank that wrote a line. In the default group, the rank within the group is the global rank."""
    return group.rank if line.rank is None and group is not None and group.is_default else line.rank


def group_of(prefix: str) -> GroupMark | None:
    """Return the group named in a line's prefixes: in the last one with a uid, otherwise in the last one.

    Only prefixes since 2.4 name the group equally on all ranks.
    """
    marks = list(_GROUP.finditer(prefix))
    if not marks:
        return None
    best = max(marks, key=lambda mark: (mark["uid"] is not None or mark["old"] is not None, mark.start()))
    uid, description = best["uid"] or best["old"] or "", best["description"] or ""
    return GroupMark(readable(uid, MAX_TEXT), readable(description, MAX_TEXT), int(best["rank"]))


def operation_of(type_name: str) -> str:
    """Return our name of an operation: `all_reduce` for `ALLREDUCE`."""
    return operation_named(type_name.lower())


def _timed_out(match: re.Match[str]) -> OperationTimeout:
    return OperationTimeout(
        operation=operation_of(match["operation"]),
        sequence=_number(match["sequence"]),
        elements_in=_number(match["numel_in"]),
        age_ms=int(match["age"]),
        timeout_ms=int(match["timeout"]),
    )


def _reached(match: re.Match[str]) -> ReportedProgress:
    enqueued, completed = int(match["enqueued"]), int(match["completed"])
    # torch 2.3 prints an uninitialized number if nothing has completed.
    return ReportedProgress(enqueued, completed if completed <= enqueued else _NO_OPERATION, _number(match["failed"]))


def _number(text: str | None) -> int | None:
    return int(text) if text is not None else None


WATCHDOG: Final = LineFormat((b"atchdog ", b"ast enqueued", b"eartbeat monitor timed out"), _read_watchdog)


# PyTorch's desync report (`TORCH_NCCL_DESYNC_DEBUG`). Each rank's watchdog writes its last started and finished
# operation to the store. The first watchdog with a timeout reads them and reports lagging ranks. `TraceUtils.h` has not
# changed the text since torch 1.11. Numbers are ranks of the group that timed out, which the report does not name.

_NEVER: Final = re.compile(r"ranks \[(?P<ranks>[\d, ]+)\] are the lagging ranks that caused this timeout")
_UNFINISHED: Final = re.compile(r"\[(?P<ranks>[\d, ]+)\] joined but didn't finish collective #(?P<sequence>\d+)")
_BEHIND: Final = re.compile(
    r"\[(?P<ranks>[\d, ]+)\] finished collective #(?P<last>\d+), but didn't join collective #(?P<sequence>\d+)"
)
MAX_RANKS: Final = 4_096


def _read_desync(line: LogLine, path: str) -> Iterator[Statement]:
    """Yield a statement on the ranks named in a line of the report; none for other lines."""
    match = _BEHIND.search(line.text)
    text = "has finished #{last} of its group, but has not joined #{sequence}"
    if match is None:
        match, text = _UNFINISHED.search(line.text), "has joined #{sequence} of its group, but has not finished it"
    if match is None:
        match, text = _NEVER.search(line.text), "has never joined an operation of its group"
    if match is None:
        return
    numbers = {name: value for name, value in match.groupdict().items() if name != "ranks"}
    ranks = tuple(int(rank) for rank in match["ranks"].replace(",", " ").split())[:MAX_RANKS]
    text = f"{text.format(**numbers)}, says PyTorch's desync report"
    yield statement(line, path, StatementKind.DESYNC, text, LaggingRanks(ranks))


DESYNC: Final = LineFormat(
    (b"finish collective #", b"finished collective #", b"They never joined any collectives"), _read_desync
)


# Fingerprints, compared before each collective with `TORCH_DISTRIBUTED_DEBUG=DETAIL`. Each rank raises an exception
# with its own call and the call of the first rank that differs. The other rank's call is correct only if both call the
# same operation: otherwise torch, up to 2.15, reads the wrong bytes.

TITLE: Final = "Detected mismatch between collectives on ranks"
_CALL: Final = re.compile(
    r"Rank (?P<rank>\d{1,7}) is running (?:inconsistent )?collective: CollectiveFingerPrint\("
    r"(?:SequenceNumber=(?P<sequence>\d+))?(?:, )?OpType=(?P<operation>\w+)"
    r"(?:, TensorShape=\[(?P<shape>[\d, ]*)\], TensorDtypes=(?P<dtype>[\w ,]*), TensorDeviceTypes=)?"
)


def _read_fingerprints(line: LogLine, path: str) -> Iterator[Statement]:
    """Yield the calls compared in a line; none for other lines."""
    if TITLE not in line.text:
        return
    calls = tuple(map(_fingerprinted_call, _CALL.finditer(line.text)))[:2]
    if not calls:
        return
    text = f"{TITLE}: rank {calls[0].rank} calls {calls[0].text}"
    yield statement(
        line, path, StatementKind.DIFFERENT_CALLS, text, CallMismatch(calls[0], calls[1] if len(calls) > 1 else None)
    )


def _fingerprinted_call(match: re.Match[str]) -> FingerprintedCall:
    shape = match["shape"]
    return FingerprintedCall(
        rank=int(match["rank"]),
        operation=operation_of(match["operation"]),
        sequence=int(match["sequence"]) if match["sequence"] else None,
        shape=None if shape is None else readable(f"[{', '.join(shape.replace(',', ' ').split())}]", MAX_TEXT),
        dtype=readable((match["dtype"] or "").lower(), MAX_TEXT),
    )


FINGERPRINTS: Final = LineFormat((TITLE.encode(),), _read_fingerprints)


_GLOO_ERROR: Final = re.compile(r"\[[^\[\]\s]*gloo/transport/\w+/[\w.]+:\d+\] (?P<message>.+)")
_GLOO_TIMEOUT: Final = re.compile(
    r"Timed out waiting (?P<timeout>\d+)ms for (?P<operation>send|recv) operation to complete"
)
_GLOO_TIMEOUTS: Final = ("Application timeout", "Read timeout", "Write timeout")
_BARRIER: Final = re.compile(r"Ranks? (?P<ranks>\d+(?:, \d+)*) failed to pass monitoredBarrier in (?P<timeout>\d+) ms")


def _read_gloo(line: LogLine, path: str) -> Iterator[Statement]:
    """Yield the statements of a line with a gloo error; none for other lines."""
    barrier = _BARRIER.search(line.text)
    if barrier is not None:
        for rank in barrier["ranks"].split(", ")[:MAX_RANKS]:
            # Ranks are within the barrier's group, which the message does not name.
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
    message = error["message"]
    kind = StatementKind.TIMED_OUT if _is_gloo_timeout(message) else StatementKind.CONNECTION_LOST
    yield statement(line, path, kind, f"gloo: {message}", _gloo_fact(message))


def _is_gloo_timeout(message: str) -> bool:
    return _GLOO_TIMEOUT.match(message) is not None or message.startswith(_GLOO_TIMEOUTS)


def _gloo_fact(message: str) -> Fact | None:
    match = _GLOO_TIMEOUT.match(message)
    # The send or receive is internal to gloo: every collective consists of them. So the operation is unknown.
    return OperationTimeout("", None, None, None, int(match["timeout"])) if match is not None else None


GLOO: Final = LineFormat((b"gloo/transport/", b"onitoredBarrier"), _read_gloo)
