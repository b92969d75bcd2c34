"""Whether a run that has no verdict stands, or stood, still outside of operations."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final, NamedTuple

from otel_torchdist.processes.children import share_between, ticks_of_tree
from otel_torchdist.tape.identity import TapeIdentity, shares_pids
from otel_torchdist.verdict.idle import WORKS, idle_of, stand_of
from otel_torchdist.verdict.past.post_mortem import PostMortem
from otel_torchdist.verdict.rules import StallRules
from otel_torchdist.verdict.wording.places import describe_idle

MEASURED_S: Final = 0.5
"""For how long it is measured whether the ranks of a live run work."""


class IdleStanding(NamedTuple):
    """A run whose ranks call nothing.

    Attributes:
        text: Where they stand, and for how long; '' if they do not.
        is_long: Whether that is unusually long for this run.
        since_ns: Since when, by the wall clock.
    """

    text: str = ""
    is_long: bool = False
    since_ns: int = 0


NOT_STANDING: Final = IdleStanding()


def standing_of(found: PostMortem, rules: StallRules, identities: Sequence[TapeIdentity]) -> IdleStanding:
    """Return how a run stands still at its last moment, from the stall timeout on.

    Args:
        found: What else is known about it.
        rules: What is long.
        identities: Its tapes.
    """
    world = found.moment.world
    stands = {view.nonce: stand for view in world.ranks.values() if (stand := stand_of(view)) is not None}
    idle = None if found.has_verdict else idle_of(world, stands)
    lasted_ns = world.taken_ns - idle.since_ns if idle is not None else 0
    if idle is None or lasted_ns < rules.threshold_ns or (found.moment.is_now and _work(identities)):
        return NOT_STANDING
    text = describe_idle(idle, lasted_ns / 1e9, not found.moment.is_now)
    wall_offset_ns = next(iter(world.ranks.values())).wall_offset_ns
    return IdleStanding(text, idle.is_long(lasted_ns, rules.idle_ns), idle.since_ns + wall_offset_ns)


def _work(identities: Sequence[TapeIdentity]) -> bool:
    """Whether one of these processes works, with those that it has started; of others that is not known."""
    within_reach = [identity.pid for identity in identities if shares_pids(identity)]
    before = [ticks_of_tree(pid) for pid in within_reach]
    time.sleep(MEASURED_S)
    after = [ticks_of_tree(pid) for pid in within_reach]
    shares = (share_between(*ticks, MEASURED_S) for ticks in zip(before, after, strict=True))
    return any(share >= WORKS for share in shares)
