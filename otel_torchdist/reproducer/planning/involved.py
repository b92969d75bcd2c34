"""Which ranks and channels of a job a verdict is about: the rest only waits for them, or has nothing to do with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from otel_torchdist.model.calls import Channel, OperationId
from otel_torchdist.model.history import RankHistory
from otel_torchdist.model.kinds import RecordKind
from otel_torchdist.model.names import NEW_GROUP
from otel_torchdist.model.verdict_kinds import VerdictKind
from otel_torchdist.reproducer.model import NotReproducibleError
from otel_torchdist.reproducer.planning.tails import is_stuck
from otel_torchdist.verdict.model import Verdict
from otel_torchdist.verdict.roll_call import CAME


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
