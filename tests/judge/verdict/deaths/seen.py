"""The ranks of a launch as seen by an agent."""

from __future__ import annotations

import dataclasses
import enum
import functools
from collections.abc import Sequence
from dataclasses import dataclass

from otel_torchdist.model.kinds import Flag, How, TapeState
from otel_torchdist.model.names import AtTimeout
from otel_torchdist.model.rank_state.lives import Death
from otel_torchdist.model.snapshot import RankView
from tests.judge.verdict.deaths.launched import TIMEOUT_S, Backend, Doing, End, Fault, Launch, Launcher
from tests.support.worlds.fake_world import NO_FLAGS, SECOND, START_NS, FakeRank, group_of

PARENT = {Launcher.RAY: "raylet", Launcher.MPIRUN: "prted", Launcher.SLURM: "slurmstepd"}
POLL_S = 0.02
NOW_S = 100.0
"""The ranks that live on do so at this time."""


class Sees(enum.Enum):
    """The evidence on ends that is available to an agent."""

    ALL = "the status of each, from the zombie or `PIDFD_GET_INFO` (Linux 6.15)"
    ZOMBIES = "the status of those that their parent has not waited for when the agent looks (before Linux 6.15)"
    ORDER = "the order alone: no status may be read"
    LOCKS = "that locks are free, when it polls (no pidfd)"


@dataclass(frozen=True)
class Sight:
    """The conditions under which an agent sees the ends.

    Attributes:
        sees: The available evidence.
        known: For `ZOMBIES`: by rank, whether its wait status is known.
        late_s: By node, seconds from the first end until the agent gets a core. It then finds all ends so far at once.
        phase: Fraction of each second at which a rank writes its heartbeat.
        waited_s: Seconds from the first end to the judgment; None to judge when all have ended.
    """

    sees: Sees
    known: tuple[bool, ...]
    late_s: tuple[float, float] = (0.0, 0.0)
    phase: float = 0.5
    waited_s: float | None = None


def views_of(launch: Launch, ends: Sequence[End | None], sight: Sight) -> list[RankView]:
    """Return the ranks as the agent sees them when it judges."""
    shown = [_shown_s(launch, ends, rank, sight) for rank in range(len(ends))]
    order = sorted((shown_s, end.shown_s, rank) for rank, end in enumerate(ends) if end and (shown_s := shown[rank]))
    now_s = NOW_S if sight.waited_s is None else order[0][0] + sight.waited_s
    seen = {rank: (at_s, nth) for nth, (at_s, _, rank) in enumerate(order) if at_s <= now_s}
    is_hung = launch.fault is Fault.HUNG
    on_device = launch.backend is not Backend.GLOO
    views: list[RankView] = []
    for rank, end in enumerate(ends):
        is_seen = rank in seen
        at_s, nth = seen.get(rank, (0.0, 0))
        ran_s = now_s if end is None else min(end.ran_s, now_s)
        sign_s = _last_beat(ran_s, (sight.phase + rank * 0.13) % 1)
        status = None if end is None or not _is_known(rank, sight) else end.status
        remote = launch.node(rank) > 0
        waits = is_hung or end is None or end.in_operation or end.failed_s is not None
        views.append(
            _view(
                *(rank, len(ends), end if is_seen else None, round(at_s * SECOND) + nth, sign_s, status),
                *(sight.sees, remote, on_device, waits and launch.doing[rank] is Doing.WAITS),
                sight.sees is not Sees.LOCKS and end is not None and _is_another_killed(end, ends),
                "" if sight.sees is Sees.LOCKS else PARENT.get(launch.launcher, "python"),
            )
        )
    return views


def _is_another_killed(end: End, ends: Sequence[End | None]) -> bool:
    """Return whether a signal had also hit another rank that was not gone when the kernel reported one end."""
    others = [one for one in ends if one is not None and one is not end and one.status & 0x7F]
    return any(one.ran_s <= end.shown_s < one.shown_s for one in others)


def _is_known(rank: int, sight: Sight) -> bool:
    return sight.sees is Sees.ALL or (sight.sees is Sees.ZOMBIES and sight.known[rank])


def _shown_s(launch: Launch, ends: Sequence[End | None], rank: int, sight: Sight) -> float:
    """Return the time at which the agent of its node sees a rank's end; 0 for never."""
    end, node = ends[rank], launch.node(rank)
    if end is None:
        return 0.0
    first_s = min(one.shown_s for other, one in enumerate(ends) if one is not None and launch.node(other) == node)
    at_s = max(end.shown_s, first_s + sight.late_s[node])
    return (at_s // POLL_S + 1) * POLL_S if sight.sees is Sees.LOCKS else at_s


def _last_beat(ran_s: float, phase: float) -> float:
    beats = (ran_s - phase) // 1.0
    return beats + phase


@functools.lru_cache(maxsize=200_000)
def _view(
    rank: int,
    size: int,
    end: End | None,
    at_ns: int,
    sign_s: float,
    status: int | None,
    sees: Sees,
    remote: bool,
    on_device: bool,
    waits: bool,
    with_others: bool,
    launcher: str,
) -> RankView:
    heartbeat_ns = START_NS + round(sign_s * SECOND)
    view = dataclasses.replace(_template(rank, size, waits, on_device), heartbeat_ns=heartbeat_ns, is_remote=remote)
    if end is None:
        return view
    died_ns = START_NS + at_ns
    is_polled = sees is Sees.LOCKS
    death = Death(
        died_ns,
        resolution_ns=round(2 * POLL_S * SECOND) if is_polled else 0,
        status=status,
        survives_sigterm=end.handles and not is_polled,
        with_others=with_others,
        launcher=launcher,
    )
    state, failure, last, still_open = TapeState.RUNNING, "", None, view.open
    if end.failed_s is not None:
        one = FakeRank(rank)
        number = _enter(one, size, on_device)
        one.end(number, end.failed_s, How.FAILED, "RuntimeError")
        last, still_open = one.last, ()
    if end.raised:
        state, failure = TapeState.FAILED, "RuntimeError" if end.failed_s is not None else "ValueError"
    elif end.status & 0xFF == 0 and not end.in_operation and end.status >> 8 != 3:
        state = TapeState.FINISHED  # by `sys.exit`
    return dataclasses.replace(
        view,
        alive=False,
        gone_since_ns=died_ns,
        death=death,
        state=state,
        failure=failure,
        last=last,
        open=still_open if end.in_operation else (),
    )


@functools.lru_cache
def _template(rank: int, size: int, waits: bool, on_device: bool) -> RankView:
    one = FakeRank(rank)
    if waits:
        _enter(one, size, on_device)
    return one.view(NOW_S)


def _enter(one: FakeRank, size: int, on_device: bool) -> int:
    group = group_of(*range(size))
    name = dataclasses.replace(group.name, timeout_ms=round(TIMEOUT_S * 1000), at_timeout=AtTimeout.RAISES)
    return one.enter(
        dataclasses.replace(group, name=name), 0.0, flags=Flag.ON_DEVICE if on_device else NO_FLAGS, blocking=True
    )
