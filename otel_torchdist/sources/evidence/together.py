"""Puts together what single ranks say of one event: only all of it shows who is missing, or whose call differs.

Nothing is concluded from silence alone: a rank that has written nothing is named only where the others' own count says
that just so many are missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from otel_torchdist.model.naming import name_ranks, readable
from otel_torchdist.sources.evidence.facts import AtBarrier, Awaited, Behind, Called, GroupMark, Mismatched, Reached
from otel_torchdist.sources.evidence.statements import MAX_TEXT, Statement, StatementKind

MAX_NAMED: Final = 64
"""Ranks of one event that are named; more than that are a list that nobody reads."""


def put_together(statements: Sequence[Statement]) -> list[Statement]:
    """Return the statements, with those of several ranks on one event replaced by what follows from all of them."""
    single = (AtBarrier, Mismatched, Behind)
    found = [one for one in statements if not isinstance(one.fact, single)]
    found += _barriers([one for one in statements if isinstance(one.fact, AtBarrier)])
    found += _different_calls([one for one in statements if isinstance(one.fact, Mismatched)])
    found += _behind([one for one in statements if isinstance(one.fact, Behind)], statements)
    found += _holders([one for one in statements if isinstance(one.fact, Awaited)])
    return found


# --- barriers of the store ---------------------------------------------------------------------------------------


def _barriers(statements: Sequence[Statement]) -> Iterator[Statement]:
    by_key: dict[str, list[tuple[Statement, AtBarrier]]] = {}
    for one in statements:
        if isinstance(one.fact, AtBarrier):
            by_key.setdefault(one.fact.key, []).append((one, one.fact))
    for key, said in by_key.items():
        if not any(fact.is_over for _, fact in said):
            yield from _barrier(key, said)


def _barrier(key: str, said: Sequence[tuple[Statement, AtBarrier]]) -> Iterator[Statement]:
    """Yield a statement on a barrier that nobody has left: ranks that came, and missing ranks if they are certain."""
    first = replace(_unsaid(said[0][0]), kind=StatementKind.MISSING_AT_STORE, label="the store")
    size, joined = max(fact.size for _, fact in said), max(fact.joined for _, fact in said)
    came = sorted({fact.rank for _, fact in said})
    if not size or joined == size:
        text = f"{_has(came)} come to '{key}'" + (f", as all {size} have" if size else "")
        yield replace(first, kind=StatementKind.AT_STORE, text=text)
        return
    count = f"{joined} of {size} ranks have come to '{key}'"
    if joined > size:
        text = f"{count}: more than there are, as in a store that an earlier attempt has used"
        yield replace(first, text=text)
        return
    missing = [rank for rank in range(size) if rank not in came]
    if len(missing) == size - joined <= MAX_NAMED and came[-1] < size:
        for rank in missing:
            yield replace(first, rank=rank, text=f"has not come: {count}, {name_ranks(came)} wait there")
        return
    yield replace(first, text=f"{count}; {_has(came)} said so, and which others have is not known")


def _has(ranks: Sequence[int]) -> str:
    return f"{name_ranks(ranks)} {'has' if len(ranks) == 1 else 'have'}"


# --- calls that do not match -------------------------------------------------------------------------------------


def _different_calls(statements: Sequence[Statement]) -> Iterator[Statement]:
    by_place: dict[int | None, list[Statement]] = {}
    for one in statements:
        if isinstance(one.fact, Mismatched):
            by_place.setdefault(one.fact.own.sequence, []).append(one)
    for said in by_place.values():
        yield from _different_calls_at(said)


def _different_calls_at(said: Sequence[Statement]) -> Iterator[Statement]:
    calls = _calls(one.fact for one in said if isinstance(one.fact, Mismatched))
    parties: dict[str, list[int]] = {}
    for rank, call in sorted(calls.items()):
        parties.setdefault(call.text, []).append(rank)
    ordered = sorted(parties.items(), key=lambda party: (-len(party[1]), party[1]))
    sequence = next((call.sequence for call in calls.values() if call.sequence is not None), None)
    where = "" if sequence is None else f" as #{sequence} of its group"
    first = _unsaid(said[0])
    are_global = _are_global((one.rank, one.fact.own.rank) for one in said if isinstance(one.fact, Mismatched))
    if len(ordered) < 2 or len(ordered[0][1]) == len(ordered[1][1]):
        text = "; ".join(f"{name_ranks(ranks)} {_calls_it(ranks)} {call}" for call, ranks in ordered)
        yield replace(first, text=readable(f"ranks disagree{where.replace(' as ', ' on ')}: {text}", MAX_TEXT))
        return
    majority, many = ordered[0]
    for call, ranks in ordered[1:]:
        text = f"calls {call}{where}, where {name_ranks(many)} {_calls_it(many)} {majority}"
        for rank in ranks[:MAX_NAMED]:
            yield _of_rank(replace(first, text=readable(text, MAX_TEXT)), rank, are_global)


def _calls(facts: Iterable[Mismatched]) -> dict[int, Called]:
    """What each rank has called: what it says itself counts, and of others only what can be read rightly."""
    known = list(facts)
    found = {fact.own.rank: fact.own for fact in reversed(known)}
    for fact in known:
        if fact.other is not None and fact.other.operation == fact.own.operation:
            found.setdefault(fact.other.rank, fact.other)
    return found


def _calls_it(ranks: Sequence[int]) -> str:
    return "calls" if len(ranks) == 1 else "call"


# --- ranks that another one names --------------------------------------------------------------------------------


def _behind(reports: Sequence[Statement], statements: Sequence[Statement]) -> Iterator[Statement]:
    """Yield the ranks that desync reports name, by their global rank if it is the default group that timed out."""
    failed = [one for one in statements if isinstance(one.fact, Reached) and one.fact.failed is not None]
    for report in reports:
        near = [one for one in failed if one.source.path == report.source.path]
        # A report is several lines, of which only the first says whose; the same watchdog's next line has the group.
        nearest = min(near, key=lambda one: _distance(report, one), default=None)
        mark = nearest.group if nearest is not None else None
        for rank in report.fact.ranks[:MAX_NAMED] if isinstance(report.fact, Behind) else ():
            yield _of_rank(_unsaid(report), rank, mark is not None and mark.is_default, mark)


def _distance(report: Statement, one: Statement) -> tuple[bool, int]:
    return one.source.line < report.source.line, abs(one.source.line - report.source.line)


def _holders(waiting: Sequence[Statement]) -> Iterator[Statement]:
    """Yield the rank that has not given what others wait for at the store."""
    timed_out = [one for one in waiting if isinstance(one.fact, Awaited) and one.fact.is_timeout]
    by_holder: dict[int, list[Statement]] = {}
    for one in timed_out:
        if isinstance(one.fact, Awaited):
            by_holder.setdefault(one.fact.holder, []).append(one)
    for holder, said in by_holder.items():
        pairs = [(one.rank, one.fact.waits) for one in said if isinstance(one.fact, Awaited)]
        waits = sorted({rank for _, rank in pairs})
        wait = "waits" if len(waits) == 1 else "wait"
        text = f"has not given NCCL's id to its group: {name_ranks(waits)} {wait} for it"
        first = replace(_unsaid(said[0]), kind=StatementKind.MISSING_AT_STORE, text=text)
        yield _of_rank(first, holder, _are_global(pairs))


def _are_global(pairs: Iterable[tuple[int | None, int]]) -> bool:
    """Whether ranks in a group are those of the job, by what its members say of themselves.

    Rank 0 has that number in every group of its own.
    """
    known = [(rank, in_group) for rank, in_group in pairs if rank is not None]
    return all(rank == in_group for rank, in_group in known) and any(rank for rank, _ in known)


def _unsaid(one: Statement) -> Statement:
    """Return a statement without its author."""
    return replace(one, rank=None, label="", local_rank=None, pid=None, fact=None, repeated=0)


def _of_rank(one: Statement, rank: int, is_global: bool, group: GroupMark | None = None) -> Statement:
    if is_global:
        return replace(one, rank=rank)
    known = group or GroupMark("", "", rank)
    return replace(one, rank=None, group=replace(known, rank=rank))
