"""Selects the ranks and channels that a verdict involves, and maps these ranks to the script's ranks."""

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
from otel_torchdist.model.reports.verdict_kinds import VerdictKind


@dataclass(frozen=True, slots=True)
class VerdictScope:
    """The ranks and channels that a verdict involves.

    Attributes:
        ranks: The ranks, ascending.
        hangs_at: The position at which each channel hangs. The calls shortly before it matter.
    """

    verdict: Verdict
    ranks: tuple[int, ...]
    hangs_at: Mapping[Channel, int]


def scope_of(verdict: Verdict, histories: Mapping[int, RankHistory]) -> VerdictScope:
    """Select the ranks and channels that a verdict involves.

    Args:
        verdict: The verdict.
        histories: The recorded calls, by rank.

    Raises:
        NotReproducibleError: No script can reproduce the verdict.
    """
    reason = verdict.kind.traits.not_by_a_script
    if reason:
        raise NotReproducibleError(f"the verdict is `{verdict.kind.value}`: {reason}")
    if any(link.remote is not None for link in verdict.circle):
        raise NotReproducibleError("a rank of the circle waits in a remote procedure call, which no script reproduces")
    hangs_at: dict[Channel, int] = {}
    for channel, sequence in _positions(verdict, histories):
        hangs_at[channel] = min(sequence, hangs_at.get(channel, sequence))
    return VerdictScope(verdict, _ranks(verdict), hangs_at)


def _ranks(verdict: Verdict) -> tuple[int, ...]:
    if verdict.circle:
        return tuple(sorted({link.rank for link in verdict.circle}))
    if verdict.mismatch is not None:
        return tuple(sorted({rank for _, ranks in verdict.mismatch.parties for rank in ranks}))
    return tuple(sorted({*verdict.ranks, *verdict.roll.ranks(*CAME)}))


def _positions(verdict: Verdict, histories: Mapping[int, RankHistory]) -> list[OperationId]:
    """Return every operation that the verdict refers to."""
    if verdict.circle:
        return [link.operation_id for link in verdict.circle]
    positions = [verdict.operation_id]
    if verdict.mismatch is not None:
        positions.append(verdict.mismatch.operation_id)
    if verdict.kind is VerdictKind.UNMATCHED or _is_about_a_creation(verdict):
        # The other side hangs in another operation, which the script must contain too.
        elsewhere = [histories[rank] for rank in _ranks(verdict) if rank in histories]
        positions += [call.operation_id for history in elsewhere for call in history.operations if is_stuck(call)]
    return positions


def _is_about_a_creation(verdict: Verdict) -> bool:
    if verdict.mismatch is None:
        return False
    kinds = {verdict.operation_id.channel.kind, verdict.mismatch.operation_id.channel.kind}
    parties = [text for text, _ in verdict.mismatch.parties]
    return RecordKind.RENDEZVOUS in kinds or any(text.startswith(NEW_GROUP) for text in parties)


MAX_RANKS_TO_KEEP_ALL: Final = 8
"""If a verdict involves at most this number of ranks, the script keeps all of them."""
MAX_PARTIES: Final = 8
"""Upper bound on the parties in the script. A party is a set of ranks that do the same. The largest are kept."""


@dataclass(frozen=True, slots=True)
class RankMapping:
    """The mapping between the job's ranks and the script's ranks.

    Attributes:
        kept: Ranks of the job with a rank in the script, ascending. The index of each is its rank in the script.
        stand_for: The job's ranks that each rank of the script stands for, because they do the same.
        dropped: Involved ranks of the job that are left out, because few others do the same.
    """

    kept: tuple[int, ...]
    stand_for: Mapping[int, tuple[int, ...]]
    dropped: tuple[int, ...]

    def script_rank(self, rank: int) -> int | None:
        """Return the script's rank for a rank of the job, or None if the rank is not kept."""
        return self.kept.index(rank) if rank in self.kept else None


def choose_ranks(scope: VerdictScope, tails: Mapping[int, Sequence[Event]]) -> RankMapping:
    """Choose the job's ranks to keep in the script.

    Args:
        scope: The ranks and channels that the verdict involves.
        tails: The last calls of these ranks.
    """
    ranks = scope.ranks
    if len(ranks) <= MAX_RANKS_TO_KEEP_ALL or scope.verdict.kind is VerdictKind.CIRCULAR:
        return RankMapping(ranks, {place: (rank,) for place, rank in enumerate(ranks)}, ())
    roots = {event.operation.record.peer for tail in tails.values() for event in tail} & {*ranks}
    parties: dict[Hashable, list[int]] = {}
    for rank in sorted(ranks, key=lambda rank: (rank not in roots, rank)):
        parties.setdefault(_behavior(scope, rank, tails.get(rank, ())), []).append(rank)
    largest = _largest(scope, parties)
    kept = {rank for party in largest for rank in party[: _ranks_to_keep(scope, party, largest)]}
    kept |= {event.operation.record.peer for rank in kept for event in tails.get(rank, ())} & {*ranks}
    ordered = tuple(sorted(kept))
    stand_for: dict[int, tuple[int, ...]] = {place: (rank,) for place, rank in enumerate(ordered)}
    for party in largest:
        first = party[0]
        others = [rank for rank in party if rank not in kept]
        stand_for[ordered.index(first)] = tuple(sorted([first, *others]))
    shown = {rank for represented in stand_for.values() for rank in represented}
    return RankMapping(ordered, stand_for, tuple(sorted({*ranks} - shown)))


def _behavior(scope: VerdictScope, rank: int, tail: Sequence[Event]) -> Hashable:
    """Return a rank's last calls without times and call sites, to compare ranks."""
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
    return rank in scope.verdict.ranks, _party(scope.verdict.mismatch, rank), calls


def _party(mismatch: Mismatch | None, rank: int) -> int:
    """Return the index of the mismatch party that a rank belongs to; -1 for none."""
    parties = mismatch.parties if mismatch is not None else ()
    return next((place for place, (_, ranks) in enumerate(parties) if rank in ranks), -1)


def _largest(scope: VerdictScope, parties: Mapping[Hashable, list[int]]) -> list[list[int]]:
    """Return the largest parties, including at least one with a rank that the verdict names."""
    named = {*scope.verdict.ranks}
    ordered = sorted(parties.values(), key=len, reverse=True)
    kept = ordered[:MAX_PARTIES]
    if not any(named & {*party} for party in kept):
        kept += [party for party in ordered if named & {*party}][:1]
    return kept


def _ranks_to_keep(scope: VerdictScope, party: Sequence[int], parties: Sequence[Sequence[int]]) -> int:
    """Return the number of ranks of a party to keep, so that the majority remains the majority."""
    mismatch = scope.verdict.mismatch
    if mismatch is None:
        unnamed = [other for other in parties if other[0] not in scope.verdict.ranks]
        return 2 if unnamed and party is unnamed[0] else 1
    if not mismatch.has_majority or _party(mismatch, party[0]) != 0:
        return 1
    indices = [_party(mismatch, other[0]) for other in parties]
    return 1 + max(indices.count(index) for index in indices if index != 0)
