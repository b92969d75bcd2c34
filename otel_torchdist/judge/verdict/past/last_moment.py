"""A run at its last moment: now, if a rank is alive; otherwise at the newest sign of life on any tape.

A rank that ended silently counts as alive at that moment, unless the tapes show that it ended earlier: its heartbeats
stopped long before while its GIL was free, or other ranks last failed in an operation shared with it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from otel_torchdist.judge.verdict.deaths import interrupted_operation
from otel_torchdist.judge.verdict.giving_up import GivenUp, all_given_up, before_giving_up
from otel_torchdist.judge.verdict.judging.judge import Judge
from otel_torchdist.judge.verdict.rules import waits_of
from otel_torchdist.judge.verdict.verdict import Verdict, locate, urgency
from otel_torchdist.judge.world.threads import last_record_ns
from otel_torchdist.model.calls import OperationId
from otel_torchdist.model.rank_state.lives import RankLife
from otel_torchdist.model.snapshot import RankView, WorldSnapshot, life_in
from otel_torchdist.node.processes.state import HEARTBEAT_LATE_NS

TOGETHER_NS: Final = 1_500_000_000
"""Time in ns within which silent ranks may have died in any order. Heartbeats are a second apart."""


@dataclass(frozen=True, slots=True)
class LastMoment:
    """A run at the last moment shown by its tapes.

    Attributes:
        world: The snapshot. Ranks alive at that moment are alive in it.
        is_now: Whether that moment is now, because a rank is alive.
        signs: By rank, the monotonic time of its last sign of life.
    """

    world: WorldSnapshot
    is_now: bool
    signs: Mapping[int, int]


def last_moment(run_id: int, views: Sequence[RankView], now_ns: int) -> LastMoment:
    """Return the last moment of a run.

    Args:
        run_id: Run id.
        views: The run's ranks as they are now.
        now_ns: Monotonic time.
    """
    signs = {view.rank: last_sign_ns(view) for view in views}
    is_now = any(view.alive for view in views)
    # Slightly later than the last event, so that all finished operations count as over.
    moment_ns = now_ns if is_now else max(signs.values()) + 1
    failed = [view for view in views if life_in(view) is RankLife.FAILED or interrupted_operation(view) is not None]
    alive = {view.rank for view in views if (view.alive if is_now else _was_alive(view, failed, moment_ns))}
    gone = _gone_since([view for view in views if view.rank not in alive])
    then = {
        view.rank: dataclasses.replace(
            view,
            alive=view.rank in alive,
            gone_since_ns=gone.get(view.rank),
            fell_silent=not is_now and _fell_silent(view, failed, moment_ns),
        )
        for view in views
    }
    return LastMoment(WorldSnapshot(run_id, moment_ns, MappingProxyType(then)), is_now, signs)


def last_sign_ns(view: RankView) -> int:
    """Return when a rank last showed a sign of life: a heartbeat, a record, or a stack."""
    return max(view.heartbeat_ns, last_record_ns(view), view.stacks.asked_ns if view.stacks is not None else 0)


def _was_alive(view: RankView, failed: Sequence[RankView], moment_ns: int) -> bool:
    if life_in(view) is not RankLife.DEAD or _is_silent(view, moment_ns):
        return False
    return not _has_interrupted(view, failed)


def _fell_silent(view: RankView, failed: Sequence[RankView], moment_ns: int) -> bool:
    """Return whether missing heartbeats are the only evidence that a rank was gone."""
    if life_in(view) is not RankLife.DEAD or view.death is not None or not _is_silent(view, moment_ns):
        return False
    return not _has_interrupted(view, failed)


def _is_silent(view: RankView, moment_ns: int) -> bool:
    return moment_ns - last_sign_ns(view) > HEARTBEAT_LATE_NS and not _last_held_the_gil(view)


def _has_interrupted(view: RankView, failed: Sequence[RankView]) -> bool:
    """Return whether a rank failed because this rank, which ended silently, was gone."""
    if any(life_in(other) is RankLife.FAILED and interrupted_operation(other) is None for other in failed):
        return False  # that rank failed first: launchers then end the others
    sign_ns = last_sign_ns(view)
    return any(_was_interrupted_by(view, other, sign_ns) for other in failed if other is not view)


def _last_held_the_gil(view: RankView) -> bool:
    """Return whether a rank last wrote a stack on a signal: it was alive, but its GIL was held."""
    return view.stacks is not None and view.stacks.by_signal and view.stacks.asked_ns > view.heartbeat_ns


def _was_interrupted_by(view: RankView, other: RankView, after_ns: int) -> bool:
    """Return whether `other` failed in an operation that it shared with a rank, after that rank's last sign of life."""
    interrupted, failed = interrupted_operation(other), interrupted_operation(view)
    if interrupted is None or (interrupted.record.completed_ns or 0) < after_ns:
        return False
    if failed is not None and failed.operation_id == interrupted.operation_id:
        return False  # both were interrupted by another rank
    channel = interrupted.operation_id.channel
    if channel.is_point_to_point:
        return view.rank in (channel.source, channel.destination)
    return interrupted.group is not None and view.rank in interrupted.group.members


def _gone_since(gone: Sequence[RankView]) -> dict[int, int]:
    """Return when each rank was gone, by rank. Silent deaths are simultaneous if heartbeats do not show their order."""
    signs = {view.rank: last_sign_ns(view) for view in gone}
    silent = [signs[view.rank] for view in gone if life_in(view) is RankLife.DEAD]
    together = range(min(silent), min(silent) + TOGETHER_NS) if silent else range(0)
    return {
        view.rank: together[0] if life_in(view) is RankLife.DEAD and signs[view.rank] in together else signs[view.rank]
        for view in gone
    }


# --- ranks that gave up -----------------------------------------------------------------------------------------------
# If ranks gave up waiting, the verdict is about the moment before. Later events do not change it.


@dataclass(frozen=True, slots=True)
class HungRun:
    """A run that hung until ranks gave up.

    Attributes:
        verdict: The verdict with places.
        world: The run just before the first rank gave up.
        given_up: The waits that ranks gave up, in order of time.
    """

    verdict: Verdict
    world: WorldSnapshot
    given_up: tuple[GivenUp, ...]


def find_hung(world: WorldSnapshot, threshold_ns: int) -> HungRun | None:
    """Return the stall that ranks gave up waiting for; None if the run did not end like that.

    The wait counts as a stall even below the threshold, because no expected wait exceeds the timeout. Announcements and
    compilations are ignored.

    Args:
        world: The run after ranks have ended.
        threshold_ns: See `Judge`.
    """
    before = before_giving_up(world)
    if before is None:
        return None
    given_up = tuple(all_given_up(world.ranks.values()))
    shortest_ns = min(wait.after_ns for wait in given_up)
    judge = Judge(before, min(threshold_ns, shortest_ns // 2))
    long_since_ns = before.taken_ns - shortest_ns
    operations = {wait.operation.operation_id for wait in given_up}
    operations |= {wait.operation.operation_id for wait in waits_of(before) if wait.since_ns <= long_since_ns}
    verdicts = [judge.verdict_on(operation_id) for operation_id in _first_of_each_channel(operations)]
    given_up_ids = {wait.operation.operation_id for wait in given_up}
    verdict = min(
        (verdict for verdict in verdicts if verdict is not None),
        key=lambda verdict: (urgency(verdict)[0], verdict.operation_id not in given_up_ids, urgency(verdict)),
        default=None,
    )
    if verdict is None:
        return None
    return HungRun(dataclasses.replace(locate(before, verdict), deadline=None), before, given_up)


def _first_of_each_channel(operations: set[OperationId]) -> list[OperationId]:
    first = {operation_id.channel: operation_id for operation_id in sorted(operations, reverse=True)}
    return list(first.values())
