"""What each rank is doing right now, as a row of a table on a terminal."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final

from rich import box
from rich.table import Table
from rich.text import Text

from otel_torchdist.cli.output.text import shown_callers
from otel_torchdist.errors import TapeError
from otel_torchdist.job.runs.lives import recorded_life_of
from otel_torchdist.model.lives import RankLife
from otel_torchdist.model.names import CallSiteName
from otel_torchdist.model.operations import Operation
from otel_torchdist.model.verdict_kinds import VerdictKind
from otel_torchdist.tape.names.reader import Names, shown_path
from otel_torchdist.tape.reading.reader import TapeReader
from otel_torchdist.tape.status import TapeStatus
from otel_torchdist.units import seconds
from otel_torchdist.verdict.model import Verdict
from otel_torchdist.world.remote_calls import worker_of

WAITING_NS: Final = 1_000_000_000
"""An operation that is open for less is not a wait; its rank runs."""
NOT_IN: Final = "not in "
"""Precedes the operation in which a rank is missing."""


class Doing(enum.Enum):
    """What a rank is doing, in a word."""

    STARTING = "starting"
    RUNNING = "running"
    CALLING = "calling"
    """It has a remote procedure call open, which may last as long as training."""
    SERVING = "serving"
    """It runs a function for another worker."""
    WAITING = "waiting"
    STALLED = "stalled"
    """It has waited longer than the threshold."""
    ABSENT = "absent"
    """The others wait for it."""
    FROZEN = "frozen"
    """The others wait for it, and it cannot run."""
    ENDED = "finished"
    FAILED = "failed"
    DEAD = "dead"
    FOLLOWED = "followed"
    """Dead as well, but not the one that the verdict names."""


@dataclass(frozen=True, slots=True)
class RankRow:
    """One rank at one moment.

    Attributes:
        rank: Global rank.
        doing: What it does.
        step: Its step.
        operation: The operation that it is in, or that it is missing in; '' if there is none.
        age_s: For how long, in seconds; None without an operation.
        place: The line of its code, or ''.
    """

    rank: int
    doing: Doing
    step: int = 0
    operation: str = ""
    age_s: float | None = None
    place: str = ""


_ENDS: Final = {RankLife.FINISHED: Doing.ENDED, RankLife.FAILED: Doing.FAILED, RankLife.DEAD: Doing.DEAD}


def rank_rows(tapes: Iterable[TapeReader], verdict: Verdict | None, threshold_s: float, now_ns: int) -> list[RankRow]:
    """Return a row for each rank, ascending.

    Args:
        tapes: One tape per rank.
        verdict: Verdict on the ongoing stall, if any.
        threshold_s: Age at which a waiting rank counts as stalled.
        now_ns: Monotonic clock.
    """
    rows = [_row(tape, verdict, threshold_s, now_ns) for tape in tapes]
    return sorted((row for row in rows if row is not None), key=lambda row: row.rank)


def _row(tape: TapeReader, verdict: Verdict | None, threshold_s: float, now_ns: int) -> RankRow | None:
    rank = tape.identity.rank
    try:
        life, status = recorded_life_of(tape), tape.status()
    except TapeError:
        return None
    step = status.step
    if life in _ENDS:
        is_other = verdict is not None and bool(verdict.ranks) and rank not in verdict.ranks
        return RankRow(rank, Doing.FOLLOWED if is_other and life is RankLife.DEAD else _ENDS[life], step)
    if verdict is not None and verdict.kind.traits.names_the_missing and rank in verdict.ranks:
        place = verdict.places.get(rank)
        operation = f"{NOT_IN}{_site_name(verdict.operation, verdict.operation_id.sequence)}"
        age_s = (now_ns - verdict.since_ns) / 1e9
        doing = Doing.FROZEN if verdict.kind is VerdictKind.FROZEN else Doing.ABSENT
        return RankRow(rank, doing, step, operation, age_s, _line(place.frame if place is not None else None))
    operation = longest_wait(tape)
    if operation is None or operation.waiting_since_ns is None:
        return _calling_row(tape, status, now_ns) or RankRow(rank, Doing.RUNNING, step)
    return _waiting_row(tape, step, operation, now_ns - operation.waiting_since_ns, threshold_s)


def longest_wait(tape: TapeReader) -> Operation | None:
    """Return the open operation in which a rank has waited longest; None if it waits in none."""
    waits = [(since, operation) for operation in tape.open_operations() if (since := operation.waiting_since_ns)]
    return min(waits, key=lambda wait: wait[0])[1] if waits else None


def _waiting_row(tape: TapeReader, step: int, operation: Operation, age_ns: int, threshold_s: float) -> RankRow:
    doing = Doing.RUNNING if age_ns < WAITING_NS else Doing.WAITING
    if age_ns >= threshold_s * 1e9:
        doing = Doing.STALLED
    signature = tape.names.signature(operation.signature)
    name = signature.operation if signature is not None else operation.kind.name.lower()
    return RankRow(
        tape.identity.rank,
        doing,
        step,
        _site_name(name, operation.sequence),
        max(age_ns, 0) / 1e9,
        _waiting_line(tape.names, operation.call_site),
    )


def _calling_row(tape: TapeReader, status: TapeStatus, now_ns: int) -> RankRow | None:
    """What a worker of RPC does that is in no operation: the oldest call that it has made, or else that it serves."""
    worker = worker_of(tape, status)
    if worker is None:
        return None
    rank, step = tape.identity.rank, status.step
    for name, since_ns in (("init_rpc", worker.joins_since_ns), ("rpc.shutdown", worker.leaves_since_ns)):
        if since_ns is not None and now_ns - since_ns >= WAITING_NS and not worker.calls:
            return RankRow(rank, Doing.WAITING, step, name, (now_ns - since_ns) / 1e9)
    call = next(iter(worker.calls), None)
    if call is None or now_ns - call.since_ns < WAITING_NS:
        return None
    doing = Doing.SERVING if call.is_served else Doing.CALLING
    return RankRow(rank, doing, step, call.text, (now_ns - call.since_ns) / 1e9, _line(call.call_site))


def _waiting_line(names: Names, call_site: int) -> str:
    """Format a call site and what has led to it, which a table cuts off where it is narrow."""
    line, path = _line(names.call_site(call_site)), shown_path(names, call_site)
    return f"{line} ← {shown_callers(path)}" if len(path) > 1 else line


def _line(frame: CallSiteName | None) -> str:
    """Format a call site, line first: a narrow table cuts off the rest."""
    return f"{PurePath(frame.file).name}:{frame.line} {frame.function}" if frame is not None else ""


def _site_name(operation: str, sequence: int) -> str:
    return f"{operation} #{sequence}" if sequence else operation


STYLES: Final = {
    Doing.STARTING: "dim",
    Doing.RUNNING: "green",
    Doing.CALLING: "green",
    Doing.SERVING: "green",
    Doing.WAITING: "yellow",
    Doing.STALLED: "bold yellow",
    Doing.ABSENT: "bold white on red",
    Doing.FROZEN: "bold white on red",
    Doing.ENDED: "dim",
    Doing.FAILED: "bold red",
    Doing.DEAD: "bold red",
    Doing.FOLLOWED: "dim",
}
"""Style of each state."""


def rank_table(rows: Iterable[RankRow]) -> Table:
    """Build a table with a row for each rank."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, expand=True)
    table.add_column("rank", justify="right", no_wrap=True)
    table.add_column("state", no_wrap=True, min_width=10)
    table.add_column("step", justify="right", no_wrap=True)
    table.add_column("operation", no_wrap=True, min_width=22)
    table.add_column("age", justify="right", no_wrap=True, min_width=7)
    table.add_column("where", no_wrap=True, ratio=1)
    for row in rows:
        style = STYLES[row.doing]
        table.add_row(
            str(row.rank),
            Text(f" {row.doing.value} ", style=style),
            str(row.step),
            Text(row.operation),
            "" if row.age_s is None else seconds(row.age_s),
            Text(row.place),
        )
    return table
