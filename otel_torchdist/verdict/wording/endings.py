"""What ended a wait for others, in words: the timeout of a backend, and what followed from that."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from otel_torchdist.model.kinds import How
from otel_torchdist.model.snapshot import RankView
from otel_torchdist.naming import name_ranks
from otel_torchdist.verdict.giving_up import all_given_up
from otel_torchdist.verdict.wording.deadlines import span_of_time
from otel_torchdist.verdict.wording.fates import describe_way

MAX_WAYS: Final = 3


def describe_end(views: Collection[RankView]) -> str:
    """`gloo gave up in ranks 1-2 after 20 s; rank 0 was then killed by SIGTERM`; '' if no rank gave up.

    Args:
        views: The ranks that shared the operation.
    """
    given_up = all_given_up(views)
    if not given_up:
        return ""
    parts: list[str] = []
    for backend in dict.fromkeys(one.backend for one in given_up):
        own = [one for one in given_up if one.backend == backend]
        longest_s = round(max(one.after_ns for one in own) / 1e9, 1)
        parts.append(f"{backend} gave up in {_named(one.rank for one in own)} after {span_of_time(longest_s)}")
    own = {one.rank for one in given_up}
    others: dict[str, list[int]] = {}
    for view in views:
        way = "" if view.rank in own else _then(view, given_up[0].at_ns)
        if way:
            others.setdefault(way, []).append(view.rank)
    parts += [_followed(way, ranks) for way, ranks in list(others.items())[:MAX_WAYS]]
    return "; ".join(parts)


def _then(view: RankView, first_ns: int) -> str:
    """How a rank ended that had not given up; '' if it lives, or if that is not known."""
    last = view.last
    if last is not None and last.record.how is How.FAILED and (last.record.completed_ns or 0) >= first_ns:
        return f"then failed with {last.failure or 'an exception'}"
    if not view.is_dead:
        return ""
    way = describe_way(view.end)
    verb, _, rest = way.partition(" ")
    return f"{verb} then {rest}" if verb == "was" else f"then {way}" if way else ""


def _followed(way: str, ranks: list[int]) -> str:
    return f"{_named(ranks)} {way.replace('was ', 'were ', 1) if len(ranks) > 1 else way}"


def _named(ranks: Iterable[int]) -> str:
    return name_ranks(tuple(sorted(ranks)))
