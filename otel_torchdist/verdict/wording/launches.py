"""The launch of a world in words: which ranks are not there, who waits for them, and at which address."""

from __future__ import annotations

from typing import Final

from otel_torchdist.naming import have, name_ranks
from otel_torchdist.verdict.launches import DEFAULT_GROUP, HOST, address_of, is_launch, is_within_node
from otel_torchdist.verdict.model import Verdict, VerdictKind

MAX_TWINS: Final = 3


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


def describe_meeting(verdict: Verdict) -> str:
    """Where the ranks wait for each other in a launch: ` at node0:29500`; '' where they do not."""
    addresses = set(_parties(verdict))
    return f" at {addresses.pop()}" if len(addresses) == 1 else ""


def wrong_ranks(verdict: Verdict) -> list[str]:
    """Ranks of which there are several processes, and ranks that a world of this size does not have."""
    parts = [
        f"{len(pids)} processes claim to be rank {rank} (pids {', '.join(map(str, pids))})"
        for rank, pids in sorted(verdict.twins.items())[:MAX_TWINS]
    ]
    if is_launch(verdict.roll) and verdict.group is not None:
        size = len(verdict.group.members)
        parts += [f"there is no rank {rank} in a world of {size}" for rank in verdict.ranks if rank >= size]
    return parts


def elsewhere(verdict: Verdict) -> list[str]:
    """Which ranks wait at which address, where they differ and the cause does not say so."""
    parties = _parties(verdict)
    if len(parties) < 2 or any(rank in verdict.roll.waits for rank in verdict.ranks):
        return []
    return [
        ", ".join(
            f"{name_ranks(ranks)} {'waits' if len(ranks) == 1 else 'wait'} at {address}"
            for address, ranks in parties.items()
        )
    ]


def _parties(verdict: Verdict) -> dict[str, list[int]]:
    """The ranks that wait in a launch by the address at which they do, as far as that is known."""
    roll = verdict.roll
    parties: dict[str, list[int]] = {}
    for rank in sorted(roll.waits) if is_launch(roll) else ():
        parties.setdefault(address_of(roll, rank), []).append(rank)
    parties.pop("", None)
    return parties
