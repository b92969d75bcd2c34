"""A job that stands still outside of operations, in words."""

from __future__ import annotations

from typing import Final

from otel_torchdist.naming import name_ranks
from otel_torchdist.units import seconds
from otel_torchdist.verdict.idle import Idle, IdlePlace
from otel_torchdist.verdict.wording.frames import describe_frame

MAX_LINES: Final = 3


def describe_idle(idle: Idle, lasted_s: float, is_over: bool = False) -> str:
    """Where all ranks stand, grouped, and for how long none has called an operation.

    Args:
        idle: The job.
        lasted_s: For how long no rank has called an operation.
        is_over: Whether their processes have ended.
    """
    parties: dict[IdlePlace, list[int]] = {}
    for rank in idle.ranks:
        parties.setdefault(idle.stands[rank], []).append(rank)
    ordered = sorted(parties.items(), key=lambda party: (-len(party[1]), party[1]))
    places = [_place(stand, ranks, is_over) for stand, ranks in ordered[:MAX_LINES]]
    others = sum(len(ranks) for _, ranks in ordered[MAX_LINES:])
    more = [f"{others} more elsewhere"] if others else []
    none = "no rank was in an operation" if is_over else "no rank is in an operation, and none has been"
    return f"{', '.join([*places, *more])}: {none} for {seconds(lasted_s)}"


def _place(stand: IdlePlace, ranks: list[int], is_over: bool) -> str:
    verb = ("was" if is_over else "is") if len(ranks) == 1 else ("were" if is_over else "are")
    waits_in = f", in {stand.waits_in}" if stand.waits_in else ""
    return f"{name_ranks(ranks)} {verb} in {describe_frame(stand.frame)}{waits_in}"
