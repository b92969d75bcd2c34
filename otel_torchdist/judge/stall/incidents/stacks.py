"""Delays a verdict until the stacks of its ranks have arrived, for a limited time."""

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
from otel_torchdist.model.rank_state.lives import SLEEPS_UNINTERRUPTIBLY
from otel_torchdist.model.reports.verdict_kinds import VerdictKind
from otel_torchdist.model.snapshot import RankView, WorldSnapshot
from otel_torchdist.node.processes.state import HEARTBEAT_LATE_NS

STACKS_DUE_NS: Final = 1_500_000_000
"""Time in ns after the threshold for which a verdict waits for stacks."""
ANSWER_DUE_NS: Final = 1_000_000_000
"""Time in ns within which a rank answers. Its Python thread polls for requests once a second."""
UNSEEN_NS: Final = 500_000_000
"""Minimum interval in ns between snapshots that counts as a pause: this process and the ranks may have been stopped."""
FORGOTTEN_NS: Final = 60_000_000_000
"""Age in ns after which a pause is ignored."""
USUAL_PASS_NS: Final = 250_000_000
CHANGE_SETTLES_NS: Final = 1_000_000_000
"""Time in ns for which a changed verdict must hold, so that ranks that arrive one after the other cause one change."""
OTHERS_END_NS: Final = 500_000_000
"""Time in ns within which torchrun, which checks every 0.1 s, ends the others after a death."""
OTHERS_END_FAR_NS: Final = 1_000_000_000
"""The same for ranks of other nodes, whose data arrives later."""
LAUNCHER_RECORDS_NS: Final = 3_000_000_000
"""Time in ns within which a launcher records the ends of ranks that died before the agent started. The launcher notices
a failure when the failed rank has unloaded torch, which takes seconds on a loaded node."""
KILL_VISIBLE_NS: Final = CLOSING_NS + 200_000_000
"""Time in ns for which a killed rank, which records nothing, may still seem alive while the kernel closes its files."""


class SnapshotTimes:
    """The times of snapshots, and the pauses in which a rank may have been stopped along with this process."""

    def __init__(self) -> None:
        """Start without a snapshot."""
        self._taken_ns = 0
        self._since_ns = 0
        self._pauses: list[tuple[int, int]] = []

    def note(self, taken_ns: int) -> None:
        """Record the time of a snapshot."""
        before_ns, self._taken_ns = self._taken_ns, taken_ns
        if taken_ns - before_ns <= UNSEEN_NS:
            return
        self._since_ns = taken_ns
        kept = [pause for pause in self._pauses if pause[1] > taken_ns - FORGOTTEN_NS]
        self._pauses = [*kept, (before_ns, taken_ns)]

    def runs_no_python(self, view: RankView, now_ns: int) -> bool:
        """Return whether a rank's heartbeat is missing although the rank was not stopped during a pause.

        It was not stopped if it has been watched without a pause for as long as an answer takes, or if the heartbeat is
        late even without the pauses.
        """
        if not view.alive or now_ns - view.heartbeat_ns <= HEARTBEAT_LATE_NS:
            return False
        if now_ns - self._since_ns >= ANSWER_DUE_NS:
            return True
        unseen_ns = sum(end - max(start, view.heartbeat_ns) for start, end in self._pauses if end > view.heartbeat_ns)
        return now_ns - view.heartbeat_ns - unseen_ns > HEARTBEAT_LATE_NS


@dataclass(slots=True)
class Pending:
    """A verdict about to be given.

    Attributes:
        occasion: The reason for giving it.
        verdict: The verdict, without places.
        asked: Tapes of the ranks that were asked.
        began_ns: When they were asked.
        not_before_ns: The earliest time at which it is given.
        deadline_ns: When it is given even without stacks.
        signaled: Tapes of the ranks that were also asked by a signal.
        awaits_launcher: Whether it is delayed because a launcher may still record how a rank ended.
    """

    occasion: Occasion
    verdict: Verdict
    asked: frozenset[int]
    began_ns: int
    not_before_ns: int
    deadline_ns: int
    signaled: frozenset[int] = field(default_factory=frozenset[int])
    awaits_launcher: bool = False

    def is_ready(self, world: WorldSnapshot) -> bool:
        """Return whether the verdict can be given: all live ranks have answered, or it has waited long enough."""
        if world.taken_ns >= self.deadline_ns:
            return True
        if world.taken_ns < self.not_before_ns:
            return False
        asked = [view for view in world.ranks.values() if view.nonce in self.asked and view.alive]
        return all(_has_answered(view, self.began_ns) for view in asked)

    def holds_for(self, occasion: Occasion, verdict: Verdict, world: WorldSnapshot) -> bool:
        """Return whether this is still the verdict to give. False after a launcher has recorded the awaited end."""
        if self.awaits_launcher and not may_be_recorded(verdict, world):
            return False
        return self.occasion is occasion and self.verdict.agrees_with(verdict)

    def find_overdue(self, world: WorldSnapshot, times: SnapshotTimes) -> frozenset[int]:
        """Return tapes of the ranks that do not answer because native code holds the GIL, each once.

        Their heartbeats have been missing for longer than an answer takes, so they cannot answer.
        """
        held = {view.nonce for view in world.ranks.values() if times.runs_no_python(view, world.taken_ns)}
        answered = {view.nonce for view in world.ranks.values() if _has_answered(view, self.began_ns)}
        overdue = frozenset(held & self.asked - self.signaled - answered)
        self.signaled |= overdue
        return overdue


def pending_for_death(occasion: Occasion, verdict: Verdict, world: WorldSnapshot) -> Pending:
    """Return a verdict on a death, given once the launcher has ended the other ranks."""
    now, first = world.taken_ns, verdict.first
    if may_be_recorded(verdict, world):
        return replace(pending_without_stacks(occasion, verdict, now, now + LAUNCHER_RECORDS_NS), awaits_launcher=True)
    if first is None or not (first.deaths or _are_ending(verdict, world)):
        return pending_without_stacks(occasion, verdict, now)
    wait_ns = _others_end_ns(world)
    if first.may_follow and any(view.alive for view in world.ranks.values()):
        wait_ns = max(wait_ns, KILL_VISIBLE_NS)  # a rank that died first may still be seen alive
    return pending_without_stacks(occasion, verdict, now, first.at_ns + wait_ns)


def may_be_recorded(verdict: Verdict, world: WorldSnapshot) -> bool:
    """Return whether a launcher may still record how a named rank ended."""
    return any(_was_unwatched(world.ranks[rank]) for rank in verdict.ranks if rank in world.ranks)


def _was_unwatched(view: RankView) -> bool:
    return view.is_new and not view.seen_alive_ns and view.death is None and view.state is TapeState.RUNNING


def pending_for_departure(occasion: Occasion, verdict: Verdict, world: WorldSnapshot) -> Pending:
    """Return a verdict on ranks that exited while others needed them, given when all ends are known."""
    return pending_without_stacks(occasion, verdict, world.taken_ns, verdict.since_ns + _others_end_ns(world))


def pending_for_mismatch(occasion: Occasion, verdict: Verdict, world: WorldSnapshot) -> Pending:
    """Return a verdict on mismatched calls, given after the time in which more ranks may show the minority.

    A backend may end a rank with a mismatched call before the slowest ranks have made their calls.
    """
    roll, mismatch = verdict.roll, verdict.mismatch
    if mismatch is None or mismatch.operation_id != roll.operation_id:
        return pending_without_stacks(occasion, verdict, world.taken_ns)
    wait_ns = _others_end_ns(world) if mismatch.may_change(len(roll.ranks(Standing.ABSENT))) else 0
    return pending_without_stacks(occasion, verdict, world.taken_ns, world.taken_ns + wait_ns)


def _others_end_ns(world: WorldSnapshot) -> int:
    is_far = any(view.is_remote for view in world.ranks.values())
    return OTHERS_END_FAR_NS if is_far else OTHERS_END_NS


def _are_ending(verdict: Verdict, world: WorldSnapshot) -> bool:
    """Return whether ranks have recorded a fatal exception. The ends of their processes follow a moment later."""
    return any(world.ranks[rank].state is TapeState.FAILED for rank in verdict.ranks if rank in world.ranks)


def pending_without_stacks(occasion: Occasion, verdict: Verdict, now_ns: int, due_ns: int = 0) -> Pending:
    """Return a verdict that asks no ranks, given immediately or at `due_ns`."""
    due_ns = max(now_ns, due_ns)
    return Pending(occasion, verdict, frozenset(), now_ns, due_ns, due_ns)


def pending_with_stacks(
    occasion: Occasion, verdict: Verdict, world: WorldSnapshot, crossed_ns: int, before: Pending | None
) -> Pending:
    """Return a verdict that waits for the stacks of ranks.

    Args:
        occasion: The reason for giving it.
        verdict: The verdict, without places.
        world: The snapshot behind it.
        crossed_ns: When the wait became a stall. For a wait that was reported before, the time of the snapshot.
        before: The pending verdict that it replaces, or None.
    """
    now = world.taken_ns
    deadline_ns = max(crossed_ns, now - USUAL_PASS_NS) + STACKS_DUE_NS
    if before is not None and before.occasion is occasion:
        deadline_ns = min(deadline_ns, before.deadline_ns)  # ranks that arrive later do not postpone it
    not_before_ns = now + CHANGE_SETTLES_NS if occasion is Occasion.CHANGED else now
    asked = frozenset(view.nonce for view in _to_ask(world, verdict))
    began_ns = now
    if before is not None and before.occasion is occasion and asked <= before.asked:
        began_ns = before.began_ns  # their answers are about the same wait
    return Pending(occasion, verdict, asked, began_ns, not_before_ns, max(deadline_ns, not_before_ns))


def _to_ask(world: WorldSnapshot, verdict: Verdict) -> list[RankView]:
    """Return the ranks whose stacks matter and are available: the named ranks and the waiting ones."""
    views = [world.ranks[rank] for rank in sorted({*verdict.ranks, *verdict.waiting}) if rank in world.ranks]
    return [
        view for view in views if view.alive and (view.stopped is None or view.stopped.state == SLEEPS_UNINTERRUPTIBLY)
    ]


def _has_answered(view: RankView, since_ns: int) -> bool:
    stacks = view.stacks
    return stacks is not None and stacks.asked_ns >= since_ns and stacks.threads is not None


# --- early stacks -----------------------------------------------------------------------------------------------------
# Requests stacks of ranks that make no calls, before the threshold. At the threshold, the cause of the delay may be
# over. If only compilation makes a rank late, it takes at least the threshold, so an early stack shows the compiler.


MIN_PAUSE_NS: Final = 1_500_000_000
"""Minimum pause in ns between requests. Ranks check once a second, and a new request replaces an unanswered one."""


class EarlyStacks:
    """Asks ranks of one run for their stacks once they have made no call for three quarters of the threshold."""

    def __init__(self, threshold_ns: int, roots: RootFinder, excuses: CompileExcuses) -> None:
        """Ask every three quarters of `threshold_ns`, and report compilations to `excuses`."""
        self._pause_ns = max(threshold_ns * 3 // 4, MIN_PAUSE_NS)
        self._roots = roots
        self._excuses = excuses
        self._asked_ns: dict[int, int] = {}
        self._wait: tuple[int, int] | None = None

    def precede(self, timeout_ns: int) -> None:
        """Shorten the interval, to have stacks before a backend gives up after `timeout_ns`."""
        self._pause_ns = min(self._pause_ns, max(timeout_ns * 3 // 4, MIN_PAUSE_NS))

    def request(self, world: WorldSnapshot, waits: list[Wait]) -> list[Event]:
        """Process a snapshot without a verdict, and the waits that may soon become stalls, the longest first."""
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
        """Return the ranks that hold up the longest wait and make calls on several threads, once per wait."""
        longest = waits[0].key if waits else None
        if longest is None or longest == self._wait:
            return []
        self._wait = longest
        verdict = self._roots.find(world, waits[:1], None)
        if verdict is None or verdict.kind is not VerdictKind.ABSENT:
            return []
        return [view for view in (world.ranks[rank] for rank in verdict.ranks) if _calls_on_several_threads(view)]

    def _is_due(self, view: RankView, now_ns: int) -> bool:
        """Return whether a rank is not waiting, and has neither made a call nor been asked during the last pause."""
        seen_ns = min(now_ns, view.seen_alive_ns) if view.is_remote else now_ns
        if seen_ns - max(self._asked_ns[view.nonce], last_call_ns(view)) < self._pause_ns:
            return False
        if view.is_over or view.stopped is not None:
            return False
        return not any(view.waits_in(operation) for operation in view.open)


def _calls_on_several_threads(view: RankView) -> bool:
    return len({thread for progress in view.progress.values() for thread in progress.threads}) > 1
