"""Which ranks and channels of a job a verdict is about, and which of these ranks the script's ranks stand for."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from otel_torchdist.analysis.reproducer.script import NotReproducibleError
from otel_torchdist.analysis.reproducer.tails import Event, is_stuck
from otel_torchdist.judge.verdict.roll_call import CAME
from otel_torchdist.judge.verdict.verdict import Verdict
from otel_torchdist.judge.world.mismatch import Mismatch
from otel_torchdist.model.calls import Channel, OperationId
from otel_torchdist.model.history import RankHistory
from otel_torchdist.model.kinds import RecordKind
from otel_torchdist.model.names import NEW_GROUP
from otel_torchdist.model.verdict_kinds import VerdictKind


@dataclass(frozen=True, slots=True)
class Involved:
    """What a verdict is about.

    Attributes:
        verdict: The verdict.
        ranks: The ranks, ascending.
        focus: By channel, the position at which it hangs; its calls shortly before that matter.
    """

    verdict: Verdict
    ranks: tuple[int, ...]
    focus: Mapping[Channel, int]


def involved_in(verdict: Verdict, histories: Mapping[int, RankHistory]) -> Involved:
    """Find what a verdict is about.

    Args:
        verdict: The verdict.
        histories: The recorded calls, by rank.

    Raises:
        NotReproducibleError: No script can show it.
    """
    reason = verdict.kind.traits.not_by_a_script
    if reason:
        raise NotReproducibleError(f"the verdict is `{verdict.kind.value}`: {reason}")
    if any(link.remote is not None for link in verdict.circle):
        raise NotReproducibleError("a rank of the circle waits in a remote procedure call, which no script makes")
    focus: dict[Channel, int] = {}
    for channel, sequence in _positions(verdict, histories):
        focus[channel] = min(sequence, focus.get(channel, sequence))
    return Involved(verdict, _ranks(verdict), focus)


def _ranks(verdict: Verdict) -> tuple[int, ...]:
    if verdict.circle:
        return tuple(sorted({link.rank for link in verdict.circle}))
    if verdict.mismatch is not None:
        return tuple(sorted({rank for _, ranks in verdict.mismatch.parties for rank in ranks}))
    return tuple(sorted({*verdict.ranks, *verdict.roll.ranks(*CAME)}))


def _positions(verdict: Verdict, histories: Mapping[int, RankHistory]) -> list[OperationId]:
    """Every operation that the verdict refers to."""
    if verdict.circle:
        return [link.operation_id for link in verdict.circle]
    found = [verdict.operation_id]
    if verdict.mismatch is not None:
        found.append(verdict.mismatch.operation_id)
    if verdict.kind is VerdictKind.UNMATCHED or _is_about_a_creation(verdict):
        # The other side is in something else, which belongs to the picture.
        elsewhere = [histories[rank] for rank in _ranks(verdict) if rank in histories]
        found += [one.operation_id for history in elsewhere for one in history.operations if is_stuck(one)]
    return found


def _is_about_a_creation(verdict: Verdict) -> bool:
    if verdict.mismatch is None:
        return False
    kinds = {verdict.operation_id.channel.kind, verdict.mismatch.operation_id.channel.kind}
    parties = [text for text, _ in verdict.mismatch.parties]
    return RecordKind.RENDEZVOUS in kinds or any(text.startswith(NEW_GROUP) for text in parties)


MOST_RANKS: Final = 8
"""A script of at most this many ranks has all of them."""
MOST_PARTIES: Final = 8
"""Of ranks that do different things, the largest parties are kept, at most this many."""


@dataclass(frozen=True, slots=True)
class Cast:
    """Who plays whom.

    Attributes:
        kept: Ranks of the job that have a rank in the script, ascending: their places here are the script's ranks.
        stand_for: By rank of the script, the ranks of the job that do the same as it.
        dropped: Ranks of the job that matter, but do something that few others do.
    """

    kept: tuple[int, ...]
    stand_for: Mapping[int, tuple[int, ...]]
    dropped: tuple[int, ...]

    def script_rank(self, rank: int) -> int | None:
        """The script's rank for a rank of the job; None if it has none of its own."""
        return self.kept.index(rank) if rank in self.kept else None


def cast_for(involved: Involved, tails: Mapping[int, Sequence[Event]]) -> Cast:
    """Choose ranks.

    Args:
        involved: What the verdict is about.
        tails: The last calls of its ranks.
    """
    ranks = involved.ranks
    if len(ranks) <= MOST_RANKS or involved.verdict.kind is VerdictKind.CIRCULAR:
        return Cast(ranks, {place: (rank,) for place, rank in enumerate(ranks)}, ())
    roots = {event.operation.record.peer for tail in tails.values() for event in tail} & {*ranks}
    parties: dict[Hashable, list[int]] = {}
    for rank in sorted(ranks, key=lambda rank: (rank not in roots, rank)):
        parties.setdefault(_doing(involved, rank, tails.get(rank, ())), []).append(rank)
    largest = _largest(involved, parties)
    kept = {rank for party in largest for rank in party[: _wanted(involved, party, largest)]}
    kept |= {event.operation.record.peer for rank in kept for event in tails.get(rank, ())} & {*ranks}
    ordered = tuple(sorted(kept))
    stand_for: dict[int, tuple[int, ...]] = {place: (rank,) for place, rank in enumerate(ordered)}
    for party in largest:
        first = party[0]
        others = [rank for rank in party if rank not in kept]
        stand_for[ordered.index(first)] = tuple(sorted([first, *others]))
    shown = {rank for ranks_there in stand_for.values() for rank in ranks_there}
    return Cast(ordered, stand_for, tuple(sorted({*ranks} - shown)))


def _doing(involved: Involved, rank: int, tail: Sequence[Event]) -> Hashable:
    """What a rank does, in the script's eyes: everything but times and places."""
    calls = tuple(
        (
            event.operation.operation_id,
            event.operation.signature,
            event.operation.record.peer,
            event.is_wait,
            event.hangs,
        )
        for event in tail
    )
    return rank in involved.verdict.ranks, _party(involved.verdict.mismatch, rank), calls


def _party(mismatch: Mismatch | None, rank: int) -> int:
    """Which party of a mismatch a rank belongs to; -1 for none."""
    parties = mismatch.parties if mismatch is not None else ()
    return next((place for place, (_, ranks) in enumerate(parties) if rank in ranks), -1)


def _largest(involved: Involved, parties: Mapping[Hashable, list[int]]) -> list[list[int]]:
    """The largest parties, and of those with one rank that the verdict names at least one."""
    named = {*involved.verdict.ranks}
    ordered = sorted(parties.values(), key=len, reverse=True)
    kept = ordered[:MOST_PARTIES]
    if not any(named & {*party} for party in kept):
        kept += [party for party in ordered if named & {*party}][:1]
    return kept


def _wanted(involved: Involved, party: Sequence[int], parties: Sequence[Sequence[int]]) -> int:
    """How many ranks of a party are kept: as many as leave the majority one."""
    mismatch = involved.verdict.mismatch
    if mismatch is None:
        unnamed = [one for one in parties if one[0] not in involved.verdict.ranks]
        return 2 if unnamed and party is unnamed[0] else 1
    if not mismatch.has_majority or _party(mismatch, party[0]) != 0:
        return 1
    others = [_party(mismatch, one[0]) for one in parties]
    return 1 + max(others.count(place) for place in others if place != 0)
