"""The launch of a world in words: which ranks are not there, who waits for them, and at which address."""

from __future__ import annotations

from otel_torchdist.naming import have, name_ranks
from otel_torchdist.verdict.launches import DEFAULT_GROUP, HOST, address_of, is_launch, is_within_node
from otel_torchdist.verdict.model import Verdict, VerdictKind


def has_own_words(verdict: Verdict) -> bool:
    """Whether a verdict is on a launch in which ranks are missing, or look elsewhere than the others."""
    is_missing = bool(verdict.ranks) and {*verdict.ranks} <= {*verdict.roll.unseen, *verdict.roll.waits}
    return verdict.kind is VerdictKind.RENDEZVOUS and is_launch(verdict.roll) and is_missing


def describe_launch(verdict: Verdict, age: str, line: str) -> str:
    """Describe which ranks have not appeared, or look for a store where there is none.

    Args:
        verdict: A verdict of which `has_own_words` is true.
        age: How long the first rank has waited.
        line: Where the ranks that wait have called it; '' if that is not known.
    """
    if verdict.ranks[0] in verdict.roll.waits:
        return _cut_off(verdict, age)
    waiting, unseen = sorted(verdict.roll.waits), name_ranks(verdict.ranks)
    address = address_of(verdict.roll, waiting[0])
    seen = f"{have(verdict.ranks)} {'never appeared' if is_within_node(address) else 'not been seen'}"
    place = f"at {address} " if address else ""
    called = f", called in {line}" if line else ""
    have_waited = f"{len(waiting)} of {verdict.members} ranks {have(waiting)} waited {place}for {age}"
    return f"{unseen} {seen}: {have_waited}, in {DEFAULT_GROUP}{called}"


def _cut_off(verdict: Verdict, age: str) -> str:
    roll, ranks = verdict.roll, verdict.ranks
    named, address, hosted = name_ranks(ranks), address_of(roll, ranks[0]), address_of(roll, HOST)
    if address == hosted:
        store = f"the store at {address}, where rank {HOST} waits, for {age}"
        return f"{named} {have(ranks)} not reached {store}, in {DEFAULT_GROUP}"
    looks = f"{named} {'looks' if len(ranks) == 1 else 'look'} for the store at {address}"
    others = [rank for rank in sorted(roll.waits) if address_of(roll, rank) == hosted]
    wait = f"{name_ranks(others)} {'waits' if len(others) == 1 else 'wait'} at {hosted}"
    return f"{looks}, but {wait}: {DEFAULT_GROUP} has been blocked for {age}"


def elsewhere(verdict: Verdict) -> list[str]:
    """Which ranks wait at which address, where they differ and the cause does not say so."""
    roll = verdict.roll
    parties: dict[str, list[int]] = {}
    for rank in sorted(roll.waits):
        parties.setdefault(address_of(roll, rank), []).append(rank)
    parties.pop("", None)
    if not is_launch(roll) or len(parties) < 2 or verdict.ranks[:1] in [(rank,) for rank in roll.waits]:
        return []
    return [
        ", ".join(
            f"{name_ranks(ranks)} {'waits' if len(ranks) == 1 else 'wait'} at {address}"
            for address, ranks in parties.items()
        )
    ]
