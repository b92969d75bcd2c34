"""A verdict that waits for the stacks of its ranks: which ranks it asks, how long it waits, and when it is ready."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from otel_torchdist.judge.stall.events import Event, Occasion, StacksWanted
from otel_torchdist.judge.verdict.compiling import CompileExcuses, last_call_ns
from otel_torchdist.judge.verdict.roll_call import Standing
from otel_torchdist.judge.verdict.root_cause import RootFinder
from otel_torchdist.judge.verdict.rules import Wait
from otel_torchdist.judge.verdict.verdict import Verdict
from otel_torchdist.judge.world.following.follower import CLOSING_NS
from otel_torchdist.model.kinds import TapeState
from otel_torchdist.model.lives import SLEEPS_UNINTERRUPTIBLY
from otel_torchdist.model.snapshot import RankView, WorldSnapshot
from otel_torchdist.model.verdict_kinds import VerdictKind
from otel_torchdist.node.processes.state import HEARTBEAT_LATE_NS

STACKS_DUE_NS: Final = 1_500_000_000
"""How long after the threshold a verdict waits for stacks."""
ANSWER_DUE_NS: Final = 1_000_000_000
"""A rank whose Python threads run beats once a second, and answers then."""
UNSEEN_NS: Final = 500_000_000
"""A pause between snapshots after which this process may have been stopped along with the ranks."""
FORGOTTEN_NS: Final = 60_000_000_000
"""Pauses that ended longer ago do not count any more."""
USUAL_PASS_NS: Final = 250_000_000
CHANGE_SETTLES_NS: Final = 1_000_000_000
"""A changed verdict must have held for this long: ranks that arrive one after the other are one change."""
OTHERS_END_NS: Final = 500_000_000
"""torchrun checks every 0.1 s whether a rank has died, and then ends the others."""
OTHERS_END_FAR_NS: Final = 1_000_000_000
"""Data from other nodes is a little older."""
LAUNCHER_SAYS_NS: Final = 3_000_000_000
"""How long a launcher may take to record how ranks ended before an agent came: it learns of a failure when the failed
rank has unloaded torch, which takes seconds on a loaded node."""
VANISHES_NS: Final = CLOSING_NS + 200_000_000
"""A rank that was killed records nothing, and may be seen alive for so long while the kernel closes its files."""


class Sight:
    """When snapshots were taken, and when not: a rank may have been stopped along with this process then."""

    def __init__(self) -> None:
        """Start without a snapshot."""
        self._taken_ns = 0
        self._since_ns = 0
        self._pauses: list[tuple[int, int]] = []

    def note(self, taken_ns: int) -> None:
        """Note the time of a snapshot."""
        before_ns, self._taken_ns = self._taken_ns, taken_ns
        if taken_ns - before_ns <= UNSEEN_NS:
            return
        self._since_ns = taken_ns
        kept = [pause for pause in self._pauses if pause[1] > taken_ns - FORGOTTEN_NS]
        self._pauses = [*kept, (before_ns, taken_ns)]

    def runs_no_python(self, view: RankView, now_ns: int) -> bool:
        """Whether a rank's heartbeat is missing, and not because the rank was stopped during a pause.

        It is not if the rank has been watched without a pause for as long as an answer takes, nor if the heartbeat is
        late without the pauses.
        """
        if not view.alive or now_ns - view.heartbeat_ns <= HEARTBEAT_LATE_NS:
            return False
        if now_ns - self._since_ns >= ANSWER_DUE_NS:
            return True
        unseen_ns = sum(end - max(start, view.heartbeat_ns) for start, end in self._pauses if end > view.heartbeat_ns)
        return now_ns - view.heartbeat_ns - unseen_ns > HEARTBEAT_LATE_NS


@dataclass(slots=True)
class Pending:
    """A verdict that is about to be given.

    Attributes:
        occasion: Why it is given.
        verdict: The verdict, without places.
        asked: Tapes of the ranks that were asked.
        began_ns: When they were asked.
        not_before_ns: The earliest time at which it is given.
        deadline_ns: When it is given with or without stacks.
        signalled: Tapes of the ranks that were asked by a signal too.
        awaits_launcher: Whether it is given later because a launcher may still record how a rank ended.
    """

    occasion: Occasion
    verdict: Verdict
    asked: frozenset[int]
    began_ns: int
    not_before_ns: int
    deadline_ns: int
    signalled: frozenset[int] = field(default_factory=frozenset[int])
    awaits_launcher: bool = False

    def is_ready(self, world: WorldSnapshot) -> bool:
        """Whether it can be given: all live ranks have answered, or it has waited long enough."""
        if world.taken_ns >= self.deadline_ns:
            return True
        if world.taken_ns < self.not_before_ns:
            return False
        asked = [view for view in world.ranks.values() if view.nonce in self.asked and view.alive]
        return all(_has_answered(view, self.began_ns) for view in asked)

    def holds_for(self, occasion: Occasion, verdict: Verdict, world: WorldSnapshot) -> bool:
        """Whether it is still the one to be given; not once a launcher has recorded what it has waited for."""
        if self.awaits_launcher and not may_be_recorded(verdict, world):
            return False
        return self.occasion is occasion and self.verdict.agrees_with(verdict)

    def find_overdue(self, world: WorldSnapshot, sight: Sight) -> frozenset[int]:
        """Tapes of the ranks that do not answer because something holds the GIL; each once.

        Their heartbeats have been missing for longer than an answer takes, so there is nothing more to wait for.
        """
        held = {view.nonce for view in world.ranks.values() if sight.runs_no_python(view, world.taken_ns)}
        answered = {view.nonce for view in world.ranks.values() if _has_answered(view, self.began_ns)}
        overdue = frozenset(held & self.asked - self.signalled - answered)
        self.signalled |= overdue
        return overdue


def of_death(occasion: Occasion, verdict: Verdict, world: WorldSnapshot) -> Pending:
    """A verdict on a death, given once it is known what happened to the others, which launchers end."""
    now, first = world.taken_ns, verdict.first
    if may_be_recorded(verdict, world):
        return replace(without_stacks(occasion, verdict, now, now + LAUNCHER_SAYS_NS), awaits_launcher=True)
    if first is None or not (first.deaths or _are_ending(verdict, world)):
        return without_stacks(occasion, verdict, now)
    wait_ns = _others_end_ns(world)
    if first.may_follow and any(view.alive for view in world.ranks.values()):
        wait_ns = max(wait_ns, VANISHES_NS)  # what they followed may be the death of one of these
    return without_stacks(occasion, verdict, now, first.at_ns + wait_ns)


def may_be_recorded(verdict: Verdict, world: WorldSnapshot) -> bool:
    """Whether a launcher may still record how a rank that a verdict names has ended."""
    return any(_was_unwatched(world.ranks[rank]) for rank in verdict.ranks if rank in world.ranks)


def _was_unwatched(view: RankView) -> bool:
    return view.is_new and not view.seen_alive_ns and view.death is None and view.state is TapeState.RUNNING


def of_departure(occasion: Occasion, verdict: Verdict, world: WorldSnapshot) -> Pending:
    """A verdict on ranks that exited while others needed them, given once it is known how all of them ended."""
    return without_stacks(occasion, verdict, world.taken_ns, verdict.since_ns + _others_end_ns(world))


def of_mismatch(occasion: Occasion, verdict: Verdict, world: WorldSnapshot) -> Pending:
    """A verdict on calls that differ, given once the ranks have come that may show which call is the odd one.

    A backend may end a rank that the odd call disturbs before the slowest ranks have called.
    """
    roll, mismatch = verdict.roll, verdict.mismatch
    if mismatch is None or mismatch.operation_id != roll.operation_id:
        return without_stacks(occasion, verdict, world.taken_ns)
    wait_ns = _others_end_ns(world) if mismatch.may_change(len(roll.ranks(Standing.ABSENT))) else 0
    return without_stacks(occasion, verdict, world.taken_ns, world.taken_ns + wait_ns)


def _others_end_ns(world: WorldSnapshot) -> int:
    is_far = any(view.is_remote for view in world.ranks.values())
    return OTHERS_END_FAR_NS if is_far else OTHERS_END_NS


def _are_ending(verdict: Verdict, world: WorldSnapshot) -> bool:
    """Whether ranks have recorded that an exception ends them: how their processes end is known a moment later."""
    return any(world.ranks[rank].state is TapeState.FAILED for rank in verdict.ranks if rank in world.ranks)


def without_stacks(occasion: Occasion, verdict: Verdict, now_ns: int, due_ns: int = 0) -> Pending:
    """A verdict that asks no ranks, and is given at `due_ns`, or at once."""
    due_ns = max(now_ns, due_ns)
    return Pending(occasion, verdict, frozenset(), now_ns, due_ns, due_ns)


def with_stacks(
    occasion: Occasion, verdict: Verdict, world: WorldSnapshot, crossed_ns: int, before: Pending | None
) -> Pending:
    """A verdict that waits until the ranks that it asks have answered.

    Args:
        occasion: Why it is given.
        verdict: The verdict, without places.
        world: The snapshot on which it rests.
        crossed_ns: When the wait became a stall; if it was reported before, when the snapshot was taken.
        before: The pending verdict that it replaces, if any.
    """
    now = world.taken_ns
    deadline_ns = max(crossed_ns, now - USUAL_PASS_NS) + STACKS_DUE_NS
    if before is not None and before.occasion is occasion:
        deadline_ns = min(deadline_ns, before.deadline_ns)  # ranks that trickle in do not postpone it
    not_before_ns = now + CHANGE_SETTLES_NS if occasion is Occasion.CHANGED else now
    asked = frozenset(view.nonce for view in _to_ask(world, verdict))
    began_ns = now
    if before is not None and before.occasion is occasion and asked <= before.asked:
        began_ns = before.began_ns  # what they answer, or have answered, is of the same wait
    return Pending(occasion, verdict, asked, began_ns, not_before_ns, max(deadline_ns, not_before_ns))


def _to_ask(world: WorldSnapshot, verdict: Verdict) -> list[RankView]:
    """Ranks whose stacks matter and are available: those that the verdict names, and those that wait."""
    views = [world.ranks[rank] for rank in sorted({*verdict.ranks, *verdict.waiting}) if rank in world.ranks]
    return [
        view for view in views if view.alive and (view.stopped is None or view.stopped.state == SLEEPS_UNINTERRUPTIBLY)
    ]


def _has_answered(view: RankView, since_ns: int) -> bool:
    stacks = view.stacks
    return stacks is not None and stacks.asked_ns >= since_ns and stacks.threads is not None


# --- early stacks -----------------------------------------------------------------------------------------------------
# Checks early what ranks are doing that make no calls for long.
# When others have waited for the threshold, it may be over. A rank that is late only because it compiled has done so
# for at least the threshold, and so was seen compiling.


LEAST_PAUSE_NS: Final = 1_500_000_000
"""Ranks check for requests once a second, and a new request replaces one that is not answered yet."""


class EarlyStacks:
    """Asks ranks of one run for their stacks whenever they have made no call for three quarters of the threshold."""

    def __init__(self, threshold_ns: int, roots: RootFinder, excuses: CompileExcuses) -> None:
        """Ask four times in three times `threshold_ns`, and report to `excuses` what is compiled."""
        self._pause_ns = max(threshold_ns * 3 // 4, LEAST_PAUSE_NS)
        self._roots = roots
        self._excuses = excuses
        self._asked_ns: dict[int, int] = {}
        self._wait: tuple[int, int] | None = None

    def precede(self, timeout_ns: int) -> None:
        """Ask early enough that it is known where ranks are when a backend gives up after `timeout_ns`."""
        self._pause_ns = min(self._pause_ns, max(timeout_ns * 3 // 4, LEAST_PAUSE_NS))

    def request(self, world: WorldSnapshot, waits: list[Wait]) -> list[Event]:
        """Process a snapshot without a verdict, and the waits that may become stalls soon, longest first."""
        self._asked_ns = {
            view.nonce: max(self._asked_ns.get(view.nonce, 0), view.stacks.asked_ns if view.stacks is not None else 0)
            for view in world.ranks.values()
        }
        self._excuses.note(world)
        due = {view.nonce for view in world.ranks.values() if self._is_due(view, world.taken_ns)}
        due |= {view.nonce for view in self._late(world, waits) if view.alive and view.stopped is None}
        self._asked_ns |= dict.fromkeys(due, world.taken_ns)
        return [StacksWanted(frozenset(due))] if due else []

    def _late(self, world: WorldSnapshot, waits: list[Wait]) -> list[RankView]:
        """Ranks that hold up the longest wait, once per wait, if another of their threads may make calls meanwhile."""
        longest = waits[0].key if waits else None
        if longest is None or longest == self._wait:
            return []
        self._wait = longest
        found = self._roots.find(world, waits[:1], None)
        if found is None or found.kind is not VerdictKind.ABSENT:
            return []
        return [view for view in (world.ranks[rank] for rank in found.ranks) if _calls_on_several_threads(view)]

    def _is_due(self, view: RankView, now_ns: int) -> bool:
        """Whether a rank has made no call and was not asked for the length of the pause, and is not waiting."""
        seen_ns = min(now_ns, view.seen_alive_ns) if view.is_remote else now_ns
        if seen_ns - max(self._asked_ns[view.nonce], last_call_ns(view)) < self._pause_ns:
            return False
        if view.is_over or view.stopped is not None:
            return False
        return not any(view.waits_in(operation) for operation in view.open)


def _calls_on_several_threads(view: RankView) -> bool:
    return len({thread for progress in view.progress.values() for thread in progress.threads}) > 1
