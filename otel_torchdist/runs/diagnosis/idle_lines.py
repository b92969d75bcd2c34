"""The lines of code at which all ranks of a run are idle."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final, NamedTuple

from otel_torchdist.judge.verdict.idle import MIN_BUSY_SHARE, idle_of, idle_place_of
from otel_torchdist.judge.verdict.past.post_mortem import PostMortem
from otel_torchdist.judge.verdict.rules import StallRules
from otel_torchdist.judge.verdict.wording.places import describe_idle
from otel_torchdist.node.processes.children import cores_between, ticks_of_tree
from otel_torchdist.tape.identity import TapeIdentity, shares_pids

CPU_SAMPLE_S: Final = 0.5
"""Seconds over which the CPU use of a live run's ranks is measured."""


class IdleLines(NamedTuple):
    """The lines of code at which all ranks of a run are idle, outside operations.

    Attributes:
        text: Describes the lines and the duration; '' if the ranks are not idle.
        is_long: Whether the ranks have been idle for unusually long in this run.
        since_ns: Start, by the wall clock.
    """

    text: str = ""
    is_long: bool = False
    since_ns: int = 0


NOT_IDLE: Final = IdleLines()


def idle_lines_of(post_mortem: PostMortem, rules: StallRules, identities: Sequence[TapeIdentity]) -> IdleLines:
    """Return the lines at which all ranks are idle at the last moment, if they have been idle for the stall timeout.

    Args:
        post_mortem: The state of the run.
        rules: Defines the stall timeout and unusually long idle times.
        identities: Identities of its tapes.
    """
    world = post_mortem.moment.world
    places = {view.nonce: place for view in world.ranks.values() if (place := idle_place_of(view)) is not None}
    idle = None if post_mortem.has_verdict else idle_of(world, places)
    lasted_ns = world.taken_ns - idle.since_ns if idle is not None else 0
    if idle is None or lasted_ns < rules.threshold_ns or (post_mortem.moment.is_now and _use_cpu(identities)):
        return NOT_IDLE
    text = describe_idle(idle, lasted_ns / 1e9, not post_mortem.moment.is_now)
    wall_offset_ns = next(iter(world.ranks.values())).wall_offset_ns
    return IdleLines(text, idle.is_long(lasted_ns, rules.idle_ns), idle.since_ns + wall_offset_ns)


def _use_cpu(identities: Sequence[TapeIdentity]) -> bool:
    """Return whether a process, or one of its descendants, uses the CPU. Ignores processes of other PID namespaces."""
    pids = [identity.pid for identity in identities if shares_pids(identity)]
    before = [ticks_of_tree(pid) for pid in pids]
    time.sleep(CPU_SAMPLE_S)
    after = [ticks_of_tree(pid) for pid in pids]
    shares = (cores_between(*ticks, CPU_SAMPLE_S) for ticks in zip(before, after, strict=True))
    return any(share >= MIN_BUSY_SHARE for share in shares)
