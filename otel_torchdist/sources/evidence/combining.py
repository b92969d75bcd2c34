"""Combines statements of several ranks about one event: together they show who is missing, or whose call differs.

Silence alone proves nothing: a rank that wrote nothing is named only if the others' count of missing ranks matches the
number of silent ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from otel_torchdist.model.text import name_ranks, readable
from otel_torchdist.sources.evidence.facts import (
    BarrierArrival,
    CallMismatch,
    FingerprintedCall,
    GroupMark,
    LaggingRanks,
    ReportedProgress,
    StoreWait,
)
from otel_torchdist.sources.evidence.statements import MAX_TEXT, Statement, StatementKind

MAX_NAMED: Final = 64
"""Upper bound on the ranks named for one event: nobody reads a longer list."""


def combine(statements: Sequence[Statement]) -> list[Statement]:
    """Replace statements of several ranks about one event by the conclusions from all of them."""
    replaced = (BarrierArrival, CallMismatch, LaggingRanks)
    combined = [statement for statement in statements if not isinstance(statement.fact, replaced)]
    combined += _barriers([statement for statement in statements if isinstance(statement.fact, BarrierArrival)])
    combined += _different_calls([statement for statement in statements if isinstance(statement.fact, CallMismatch)])
    combined += _lagging_ranks(
        [statement for statement in statements if isinstance(statement.fact, LaggingRanks)], statements
    )
    combined += _missing_writers([statement for statement in statements if isinstance(statement.fact, StoreWait)])
    return combined


# --- barriers of the store ---------------------------------------------------------------------------------------


def _barriers(statements: Sequence[Statement]) -> Iterator[Statement]:
    by_key: dict[str, list[tuple[Statement, BarrierArrival]]] = {}
    for statement in statements:
        if isinstance(statement.fact, BarrierArrival):
            by_key.setdefault(statement.fact.key, []).append((statement, statement.fact))
    for key, arrivals in by_key.items():
        if not any(fact.is_over for _, fact in arrivals):
            yield from _barrier(key, arrivals)


def _barrier(key: str, arrivals: Sequence[tuple[Statement, BarrierArrival]]) -> Iterator[Statement]:
    """Yield statements on a barrier that nobody has left: the missing ranks if certain, otherwise the counts."""
    template = replace(_anonymous(arrivals[0][0]), kind=StatementKind.MISSING_AT_STORE, label="the store")
    size, joined = max(fact.size for _, fact in arrivals), max(fact.joined for _, fact in arrivals)
    arrived = sorted({fact.rank for _, fact in arrivals})
    if not size or joined == size:
        text = f"{_ranks_have(arrived)} reached the barrier '{key}'" + (f", as all {size} have" if size else "")
        yield replace(template, kind=StatementKind.AT_STORE, text=text)
        return
    count = f"{joined} of {size} ranks have reached the barrier '{key}'"
    if joined > size:
        text = f"{count}: more than exist, so an earlier attempt probably used the same store"
        yield replace(template, text=text)
        return
    missing = [rank for rank in range(size) if rank not in arrived]
    if len(missing) == size - joined <= MAX_NAMED and arrived[-1] < size:
        for rank in missing:
            yield replace(
                template, rank=rank, text=f"has not arrived: {count}, where {name_ranks(arrived)} {_wait(arrived)}"
            )
        return
    yield replace(template, text=f"{count}; only {name_ranks(arrived)} {_are(arrived)} known to have arrived")


def _wait(ranks: Sequence[int]) -> str:
    return "waits" if len(ranks) == 1 else "wait"


def _are(ranks: Sequence[int]) -> str:
    return "is" if len(ranks) == 1 else "are"


def _ranks_have(ranks: Sequence[int]) -> str:
    return f"{name_ranks(ranks)} {'has' if len(ranks) == 1 else 'have'}"


# --- mismatched calls --------------------------------------------------------------------------------------------


def _different_calls(statements: Sequence[Statement]) -> Iterator[Statement]:
    by_sequence: dict[int | None, list[Statement]] = {}
    for statement in statements:
        if isinstance(statement.fact, CallMismatch):
            by_sequence.setdefault(statement.fact.own.sequence, []).append(statement)
    for reports in by_sequence.values():
        yield from _different_calls_at(reports)


def _different_calls_at(reports: Sequence[Statement]) -> Iterator[Statement]:
    calls = _calls(report.fact for report in reports if isinstance(report.fact, CallMismatch))
    ranks_by_call: dict[str, list[int]] = {}
    for rank, call in sorted(calls.items()):
        ranks_by_call.setdefault(call.text, []).append(rank)
    ordered = sorted(ranks_by_call.items(), key=lambda item: (-len(item[1]), item[1]))
    sequence = next((call.sequence for call in calls.values() if call.sequence is not None), None)
    where = "" if sequence is None else f" as #{sequence} of its group"
    template = _anonymous(reports[0])
    are_global = _are_global(
        (report.rank, report.fact.own.rank) for report in reports if isinstance(report.fact, CallMismatch)
    )
    if len(ordered) < 2 or len(ordered[0][1]) == len(ordered[1][1]):
        text = "; ".join(f"{name_ranks(ranks)} {_call_verb(ranks)} {call}" for call, ranks in ordered)
        yield replace(template, text=readable(f"ranks disagree{where.replace(' as ', ' on ')}: {text}", MAX_TEXT))
        return
    majority, majority_ranks = ordered[0]
    for call, ranks in ordered[1:]:
        text = f"calls {call}{where}, where {name_ranks(majority_ranks)} {_call_verb(majority_ranks)} {majority}"
        for rank in ranks[:MAX_NAMED]:
            yield _of_rank(replace(template, text=readable(text, MAX_TEXT)), rank, are_global)


def _calls(facts: Iterable[CallMismatch]) -> dict[int, FingerprintedCall]:
    """Return the call of each rank. A rank's report on itself takes precedence over another rank's report on it.

    torch misreads the fingerprint of another operation, so reports on other ranks count only for the same operation.
    """
    mismatches = list(facts)
    calls = {mismatch.own.rank: mismatch.own for mismatch in reversed(mismatches)}
    for mismatch in mismatches:
        if mismatch.other is not None and mismatch.other.operation == mismatch.own.operation:
            calls.setdefault(mismatch.other.rank, mismatch.other)
    return calls


def _call_verb(ranks: Sequence[int]) -> str:
    return "calls" if len(ranks) == 1 else "call"


# --- ranks named by another rank ---------------------------------------------------------------------------------


def _lagging_ranks(reports: Sequence[Statement], statements: Sequence[Statement]) -> Iterator[Statement]:
    """Yield the ranks named in desync reports; as global ranks if the default group timed out."""
    failed = [
        statement
        for statement in statements
        if isinstance(statement.fact, ReportedProgress) and statement.fact.failed is not None
    ]
    for report in reports:
        same_file = [statement for statement in failed if statement.source.path == report.source.path]
        # A report does not name its group, but the next line of the same watchdog does.
        nearest = min(same_file, key=lambda statement: _distance(report, statement), default=None)
        group = nearest.group if nearest is not None else None
        for rank in report.fact.ranks[:MAX_NAMED] if isinstance(report.fact, LaggingRanks) else ():
            yield _of_rank(_anonymous(report), rank, group is not None and group.is_default, group)


def _distance(report: Statement, statement: Statement) -> tuple[bool, int]:
    return statement.source.line < report.source.line, abs(statement.source.line - report.source.line)


def _missing_writers(waiting: Sequence[Statement]) -> Iterator[Statement]:
    """Yield each rank that has not stored NCCL's id in the store although other ranks wait for it."""
    timed_out = [
        statement for statement in waiting if isinstance(statement.fact, StoreWait) and statement.fact.is_timeout
    ]
    by_writer: dict[int, list[Statement]] = {}
    for statement in timed_out:
        if isinstance(statement.fact, StoreWait):
            by_writer.setdefault(statement.fact.writer, []).append(statement)
    for writer, waits in by_writer.items():
        pairs = [(wait.rank, wait.fact.waiter) for wait in waits if isinstance(wait.fact, StoreWait)]
        ranks = sorted({rank for _, rank in pairs})
        text = f"has not given NCCL's id to its group: {name_ranks(ranks)} {_wait(ranks)} for it"
        template = replace(_anonymous(waits[0]), kind=StatementKind.MISSING_AT_STORE, text=text)
        yield _of_rank(template, writer, _are_global(pairs))


def _are_global(pairs: Iterable[tuple[int | None, int]]) -> bool:
    """Return whether the ranks within a group are global ranks.

    Rank 0 alone proves nothing: it is rank 0 in each of its groups.

    Args:
        pairs: For each report its author's global rank, or None if unknown, and its author's rank within the group.
    """
    with_rank = [(rank, in_group) for rank, in_group in pairs if rank is not None]
    return all(rank == in_group for rank, in_group in with_rank) and any(rank for rank, _ in with_rank)


def _anonymous(statement: Statement) -> Statement:
    """Return a statement without its author."""
    return replace(statement, rank=None, label="", local_rank=None, pid=None, fact=None, repeated=0)


def _of_rank(statement: Statement, rank: int, is_global: bool, group: GroupMark | None = None) -> Statement:
    """Return the statement about a rank, which is a global rank or a rank within a group."""
    if is_global:
        return replace(statement, rank=rank)
    mark = group or GroupMark("", "", rank)
    return replace(statement, rank=None, group=replace(mark, rank=rank))
