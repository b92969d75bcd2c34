"""Rules for stalls: the threshold, the usual duration at a call site, ignored operations, suspensions.

A suspended job (gang scheduling, `docker pause`, a cgroup freezer, SIGSTOP to all its processes) continues after hours
as if nothing had happened, but CLOCK_MONOTONIC has kept running. Running ranks show a heartbeat each second or, while
native code holds the GIL, growing kernel counters (`processes/state.py`). If no rank of a run shows either, the run was
suspended, whether or not its agent was too. A single stopped rank is different: the other ranks, which wait for it,
still have heartbeats.

Where the kernel's counters cannot be read (ranks in another PID namespace), a run without heartbeats counts as
suspended. Aborting a healthy job is worse than missing a hang of native code in every rank.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import PurePath
from typing import Final

from otel_torchdist.config import ActionKind, Config
from otel_torchdist.judge.verdict.circumstances import checkpoint_of, takes_its_usual_time
from otel_torchdist.judge.verdict.deaths import has_raised
from otel_torchdist.judge.verdict.verdict import Doubt, Verdict
from otel_torchdist.model.calls import OperationId, OperationView
from otel_torchdist.model.kinds import How, TapeState
from otel_torchdist.model.reports.verdict_kinds import VerdictKind
from otel_torchdist.model.snapshot import RankView, WorldSnapshot


@dataclass(frozen=True, slots=True)
class StallRules:
    """The rules for what counts as a stall.

    Attributes:
        threshold_ns: Minimum age of a stalled operation.
        ignored: Patterns for `fnmatch`. An operation never stalls if its name, group, label or call site (written
            `evaluate.py:run`) matches one.
        compares_calls: Whether calls are compared between ranks even where nothing stalls.
        grace_ns: Time from the warning to the actions, during which the verdict must hold.
        idle_ns: Minimum time without a call for which a whole job counts as idle; 0 to report no idle jobs.
    """

    threshold_ns: int
    ignored: tuple[str, ...] = ()
    compares_calls: bool = True
    grace_ns: int = 0
    idle_ns: int = 0

    @classmethod
    def from_config(cls, config: Config, threshold_s: float | None = None) -> StallRules:
        """Return the rules that a user has set; `threshold_s`, if given, replaces the threshold of the settings."""
        seconds = config.stall_timeout if threshold_s is None else threshold_s
        acts = any(action.kind is not ActionKind.LOG for action in config.on_stall)
        grace_ns = round(config.on_stall_grace * 1e9) if acts else 0
        threshold_ns = round(seconds * 1e9)
        idle_ns = config.idle_after * threshold_ns
        return cls(threshold_ns, config.stall_ignore, config.compare_calls, grace_ns, idle_ns)

    @property
    def timeouts_exceed_ns(self) -> int:
        """Time in ns that backend timeouts should exceed. A shorter one ends a stall before all actions have run."""
        return self.threshold_ns + self.grace_ns

    @property
    def threshold_s(self) -> float:
        """The threshold in seconds."""
        return self.threshold_ns / 1e9

    def is_stalled(self, wait: Wait, age_ns: int) -> bool:
        """Return whether a wait of this age is longer than allowed."""
        if age_ns < max(self.threshold_ns, wait.operation.tolerance_ns):
            return False
        return not self.is_ignored(wait)

    def is_ignored(self, wait: Wait) -> bool:
        """Return whether a pattern of the user excludes this wait."""
        return bool(self.ignored) and self._matches_pattern(wait.operation)

    def _matches_pattern(self, operation: OperationView) -> bool:
        names = [operation.name, operation.label]
        if operation.group is not None:
            names.append(operation.group.label)
        if operation.call_site is not None:
            site = operation.call_site
            names += [f"{PurePath(site.file).name}:{site.function}", site.through]
        return any(fnmatchcase(name, pattern) for name in names if name for pattern in self.ignored)


def is_expected(world: WorldSnapshot, verdict: Verdict) -> bool:
    """Return whether all ranks that hold others up, or all waiting ranks, have announced a long wait.

    In a circle each rank holds up all others, so one announcement is enough. A rank in a checkpoint stage needs no
    announcement while the stage takes no longer than usual.
    """
    if verdict.kind.traits.is_final:
        return False
    named = [
        expects(world.ranks[rank], world) or _is_saving_as_usual(world, verdict, rank)
        for rank in verdict.ranks
        if rank in world.ranks
    ]
    waiting = [expects(world.ranks[rank], world) for rank in verdict.waiting if rank in world.ranks]
    is_circle = verdict.kind is VerdictKind.CIRCULAR or _is_of_circle(verdict.doubt)
    is_announced = any(named) if is_circle else len(named) == len(verdict.ranks) and all(named)
    return (bool(named) and is_announced) or (bool(waiting) and all(waiting))


def _is_of_circle(doubt: Doubt | None) -> bool:
    """Return whether a doubt means that ranks wait for each other."""
    match doubt:
        case Doubt.CYCLE | Doubt.THREADS:
            return True
        case Doubt.SILENT | Doubt.MEMBERS | Doubt.RECORDS_LOST | Doubt.UNALIGNED | Doubt.ANY_SOURCE | Doubt.NO_GROUP:
            return False
        case None:
            return False


def _is_saving_as_usual(world: WorldSnapshot, verdict: Verdict, rank: int) -> bool:
    stopped = world.ranks[rank].stopped
    # A wait for a disk cannot be interrupted, but a rank stopped by a signal makes no progress with its checkpoint.
    is_on_the_way = verdict.kind is VerdictKind.ABSENT or (
        verdict.kind is VerdictKind.FROZEN and stopped is not None and stopped.state == "D"
    )
    return is_on_the_way and takes_its_usual_time(checkpoint_of(world, rank, verdict.roll), world.taken_ns)


def expects(view: RankView, world: WorldSnapshot) -> bool:
    """Return whether a rank has announced that it waits, or lets others wait."""
    return view.alive and view.expects_until_ns > world.taken_ns


HEARTBEAT_DUE_NS: Final = 1_500_000_000
"""Time in ns within which a heartbeat is due: its period of one second, plus scheduling delay."""
LONG_NS: Final = 30_000_000_000
"""Suspensions of this length in ns or more are no wait time at all. A running agent never pauses so long."""


class Standstill:
    """Tracks the time in suspensions of the whole run, for each of its waits."""

    def __init__(self) -> None:
        self._sign_ns = 0
        self._lost_ns: dict[tuple[int, int], int] = {}
        self._extended: dict[tuple[int, int], int] = {}

    def observe(self, world: WorldSnapshot, waits: Iterable[Wait]) -> None:
        """Process a snapshot and the waits in it."""
        before_ns = self._sign_ns
        self._sign_ns = max((_last_sign_ns(view) for view in world.ranks.values() if view.alive), default=0)
        self._sign_ns = max(self._sign_ns, before_ns)
        is_long = self._sign_ns - before_ns >= LONG_NS
        stood_from_ns = before_ns if is_long else before_ns + HEARTBEAT_DUE_NS
        lost: dict[tuple[int, int], int] = {}
        for wait in waits:
            lost_ns = self._lost_ns.get(wait.key, 0)
            if before_ns and self._sign_ns > stood_from_ns:
                lost_ns += max(self._sign_ns - max(stood_from_ns, wait.since_ns), 0)
            lost[wait.key] = lost_ns
        self._lost_ns = lost
        stood_ns = self._sign_ns - stood_from_ns if before_ns else 0
        self._extended = {
            (view.nonce, view.expects_until_ns): self._extension(view, stood_from_ns, max(stood_ns, 0))
            for view in world.ranks.values()
            if view.expects_until_ns
        }

    def _extension(self, view: RankView, stood_from_ns: int, stood_ns: int) -> int:
        extension_ns = self._extended.get((view.nonce, view.expects_until_ns), 0)
        was_announced = view.expects_until_ns + extension_ns > stood_from_ns
        return extension_ns + stood_ns if was_announced else extension_ns

    def with_announcements(self, world: WorldSnapshot) -> WorldSnapshot:
        """Return the snapshot with announcements extended by the time for which the run was suspended."""
        extended = {
            rank: replace(view, expects_until_ns=view.expects_until_ns + extension_ns)
            for rank, view in world.ranks.items()
            if (extension_ns := self._extended.get((view.nonce, view.expects_until_ns), 0))
        }
        return replace(world, ranks={**world.ranks, **extended}) if extended else world

    def is_on(self, now_ns: int) -> bool:
        """Return whether the run is suspended now."""
        return self.ran_until_ns(now_ns) < now_ns

    def ran_until_ns(self, now_ns: int) -> int:
        """Return the latest time at which a rank of the run was observed running."""
        return min(now_ns, self._sign_ns + HEARTBEAT_DUE_NS) if self._sign_ns else now_ns

    def lost_ns(self, wait: Wait) -> int:
        """Return the part of a wait that does not count, because the run was suspended."""
        return self._lost_ns.get(wait.key, 0)

    def forgive(self, waits: Iterable[Wait]) -> None:
        """Count these waits in full from now on."""
        for wait in waits:
            self._lost_ns.pop(wait.key, None)


def _last_sign_ns(view: RankView) -> int:
    """Return when the tape last shows a rank running."""
    entered_ns = max((operation.record.entered_ns for operation in view.open), default=0)
    ended_ns = view.last.record.completed_ns or 0 if view.last is not None else 0
    stacks = view.stacks  # a suspended process handles no signal
    signaled_ns = stacks.asked_ns if stacks is not None and stacks.by_signal else 0
    return max(view.heartbeat_ns, view.ran_ns, view.created_ns, entered_ns, ended_ns, signaled_ns)


# --- waits ------------------------------------------------------------------------------------------------------------
# The waits of a snapshot: open operations in which a rank waits, and operations interrupted by a death.


DYING_NS: Final = 500_000_000
"""Time in ns for which a rank that dies in an operation may still be seen alive, while the kernel closes its files."""


@dataclass(frozen=True, slots=True)
class Wait:
    """The wait of a rank in an operation.

    Attributes:
        operation: The operation in which it waits.
        since_ns: When it began to wait.
    """

    view: RankView
    operation: OperationView
    since_ns: int

    @property
    def key(self) -> tuple[int, int]:
        """Identifier of the operation among all tapes."""
        return self.view.nonce, self.operation.record.number


def waits_of(world: WorldSnapshot) -> list[Wait]:
    """Return all waits, the longest first."""
    waits = [
        Wait(view, operation, operation.waiting_since_ns)
        for view in world.ranks.values()
        for operation in view.open
        if operation.waiting_since_ns is not None and view.waits_in(operation)
    ]
    return sorted(waits, key=lambda wait: (wait.since_ns, wait.view.rank, wait.operation.record.number))


def blocked_by_deaths(world: WorldSnapshot, alive_at: dict[int, int]) -> set[OperationId]:
    """Return operations in which ranks wait, or were interrupted, after the death of a member.

    Ranks that were already gone when the death was observed are no evidence: a launcher may have ended them all.

    Args:
        world: The snapshot.
        alive_at: By rank, the monotonic time at which it was last seen alive.
    """
    operations: set[OperationId] = set()
    for dead in world.ranks.values():
        seen_ns = dead.gone_since_ns
        if not dead.is_dead or seen_ns is None:
            continue
        for view in world.ranks.values():
            if view.gone_since_ns is None or view.gone_since_ns > seen_ns:
                left = [
                    *_waits_after(view, seen_ns, world.taken_ns),
                    *_interrupted_after(view, alive_at.get(dead.rank)),
                ]
                operations.update(operation.operation_id for operation in left if operation.involves(dead.rank))
    return operations


def died_in(world: WorldSnapshot) -> set[OperationId]:
    """Return operations in which ranks ended, or were interrupted before they ended."""
    dead = [view for view in world.ranks.values() if view.is_dead]
    interrupted = [view.last for view in dead if view.last is not None and view.last.record.how is How.FAILED]
    return {operation.operation_id for view in dead for operation in view.open} | {
        operation.operation_id for operation in interrupted
    }


def interrupted_by_deaths(world: WorldSnapshot) -> set[OperationId]:
    """Return operations interrupted after the last sign of life of a member that is gone now.

    Unlike in `blocked_by_deaths`, all ranks may be gone, because a launcher ends the others within moments. An agent
    that starts later knows that the member died first in two cases. Either the launcher has recorded its end, or
    another rank has recorded a failure while the member recorded none, or only an exception that no other rank causes.
    """
    operations: set[OperationId] = set()
    for dead in world.ranks.values():
        if not dead.is_dead or not (dead.seen_alive_ns or dead.is_new):
            continue
        interrupted = (
            operation_id
            for view in world.ranks.values()
            if view is not dead
            for operation_id in _interrupted_operations(view, dead)
        )
        operations.update(interrupted)
    return operations


def _interrupted_operations(view: RankView, dead: RankView) -> list[OperationId]:
    if dead.seen_alive_ns:
        alive_ns = dead.seen_alive_ns
    elif dead.death is not None or (
        view.state is TapeState.FAILED and (dead.state is not TapeState.FAILED or has_raised(dead))
    ):
        alive_ns = dead.heartbeat_ns
    else:
        return []
    interrupted = _interrupted_after(view, alive_ns)
    return [operation.operation_id for operation in interrupted if operation.involves(dead.rank)]


def _waits_after(view: RankView, seen_ns: int, now_ns: int) -> list[OperationView]:
    """Return the waits of a rank, from a pass after the dead rank's death, when its whole tape has been read."""
    if seen_ns >= now_ns:
        return []
    return [operation for operation in view.open if operation.waiting_since_ns is not None]


def _interrupted_after(view: RankView, alive_ns: int | None) -> list[OperationView]:
    """Return the operation that raised after a dead rank was last seen alive, or just before.

    The kernel closes the sockets of a dying process before its end is visible.
    """
    last = view.last
    if last is None or alive_ns is None or last.record.how is not How.FAILED:
        return []
    return [last] if (last.record.completed_ns or 0) >= alive_ns - DYING_NS else []
