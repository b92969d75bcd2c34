"""Ranks that exited without an error while others still needed them: one had fewer batches, for example.

Some backends let the others wait, which is a stall like any other. gloo closes its connections: the others fail at once
with exceptions that name no rank, and their launcher ends them.
"""

from __future__ import annotations

import signal
from typing import Final

from otel_torchdist.model.snapshot import RankView, WorldSnapshot
from otel_torchdist.verdict.first_death import failed_by_exception
from otel_torchdist.verdict.model import Verdict
from otel_torchdist.verdict.roll_call import Standing

ASKING: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def names_departed(verdict: Verdict) -> bool:
    """Whether a verdict names only ranks that exited before the operation was over."""
    return {verdict.roll.standings.get(rank) for rank in verdict.ranks} == {Standing.ENDED}


def is_about_failure(verdict: Verdict) -> bool:
    """Whether ranks failed in an operation before which the ranks exited that a verdict on it names."""
    return names_departed(verdict) and bool(verdict.roll.ranks(Standing.FAILED))


def has_failed_by_departure(verdict: Verdict, world: WorldSnapshot) -> bool:
    """Whether an operation failed because the ranks that a verdict on it names had exited.

    While members are not seen, these may have ended before the ones that are.
    """
    if not names_departed(verdict) or verdict.roll.silent:
        return False
    departed = [world.ranks[rank] for rank in verdict.ranks]
    failed = [world.ranks[rank] for rank in verdict.roll.ranks(Standing.FAILED)]
    # Who outlived the ranks that exited has shown that as well.
    is_seen = any(map(_is_end_known, departed)) or any(view.seen_alive_ns for view in failed)
    if is_cancelled(verdict, world) or not is_seen:
        return False
    return any(view.exited_in_error or failed_by_exception(view) for view in failed)


def _is_end_known(view: RankView) -> bool:
    """Whether a rank was seen before it exited, or its launcher has recorded that to an agent that came too late."""
    return bool(view.seen_alive_ns) or (view.is_new and view.death is not None)


def is_cancelled(verdict: Verdict, world: WorldSnapshot) -> bool:
    """Whether a verdict names ranks that exited because all members were asked to: the one that is faster is no cause.

    A rank that alone was asked has left the others behind, which nobody meant to.
    """
    if not names_departed(verdict):
        return False
    members = [world.ranks[rank] for rank in verdict.roll.standings if rank in world.ranks]
    return all(was_signalled(view) for view in members)


def was_signalled(view: RankView) -> bool:
    """Whether a signal has asked a rank to end: recorded, or seen in how its process ended."""
    if view.asked_signal:
        return True
    number = view.death.signal or (view.exit_code or 0) - 128 if view.death is not None else 0
    return number in ASKING
