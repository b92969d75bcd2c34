"""The current state of each rank of a run, one by one and in crowds of ranks in the same state."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from otel_torchdist.model.rank_state.lives import RankLife
from otel_torchdist.model.remote_calls import WorkerView
from otel_torchdist.model.reports.verdict_kinds import VerdictKind
from otel_torchdist.model.snapshot import RankView, WorldSnapshot, life_in
from otel_torchdist.model.text import compress_ranks
from otel_torchdist.show.live.blame import KnownStall
from otel_torchdist.show.live.live_snapshot import Sample
from otel_torchdist.show.live.texts import shown, shown_call_path, shown_group, shown_line

WAITS_NS: Final = 1_000_000_000
"""Minimum age of an open operation that counts as a wait; before that its rank is running."""
RATES_OVER_NS: Final = 10_000_000_000
"""Window over which a rank's rates and shares are measured."""
MAX_RANKS: Final = 4096
"""Upper bound on the ranks listed one by one. Crowds cover all ranks."""
MAX_CROWDS: Final = 64


class RankState(enum.Enum):
    """The state of a rank. States that need attention come first."""

    DEAD = "dead"
    STOPPED = "stopped"
    """The kernel does not let its process run."""
    ABSENT = "absent"
    """It is alive, but has not entered the operation in which other ranks wait for it."""
    UNREACHABLE = "unreachable"
    """The agent of its node does not answer."""
    FAILED = "failed"
    STALLED = "stalled"
    """It has waited in an operation for longer than the threshold of a stall."""
    WAITING = "waiting"
    """Its oldest open operation has been open for more than a second."""
    SERVING = "serving"
    """It runs a function for another worker."""
    CALLING = "calling"
    """It has a remote procedure call open, which may last as long as training."""
    RUNNING = "running"
    STARTING = "starting"
    """It has no tape yet."""
    FOLLOWED = "followed"
    """It is dead, but the verdict names another rank."""
    FINISHED = "finished"
    SWITCHED_OFF = "switched off"
    """Recording was switched off. Its process goes on, or went on."""


_ORDER: Final = {state.value: index for index, state in enumerate(RankState)}
_ENDS: Final = {
    RankLife.FINISHED: RankState.FINISHED,
    RankLife.FAILED: RankState.FAILED,
    RankLife.DEAD: RankState.DEAD,
}
NOT_IN: Final = "not in "
"""Precedes the operation in which a rank is missing."""
OVER: Final = frozenset({*_ENDS.values(), RankState.FOLLOWED, RankState.SWITCHED_OFF})
"""States of ranks whose process has ended."""


@dataclass(frozen=True, slots=True)
class RankRow:
    """The row of a rank.

    Attributes:
        rank: Global rank.
        host: Its node.
        state: A value of `RankState`: `running`, `waiting`, `stalled`, …
        named: Whether the verdict on the ongoing stall names it.
        operation: The operation that it waits in or is missing in; '' if there is none.
        group: Name of that operation's group.
        age_s: Age of the wait; None without an operation.
        line: The line of its code that called the operation, and its call path; or ''.
        step: Its step.
        heartbeat_s: Seconds since its heartbeat last showed that its Python threads run; None once it has ended.
        communicating: Share of the last seconds with an operation in flight, from 0 to 1; None if it is not measured
            here, as on another node.
        blocked: Share of the last seconds with a thread blocked in an operation.
        overhead: Share of the last seconds that our own code took on its threads.
        steps_per_s: Steps per second; None if it is not measured here.
    """

    rank: int
    host: str
    state: str
    named: bool
    operation: str
    group: str
    age_s: float | None
    line: str
    step: int
    heartbeat_s: float | None
    communicating: float | None
    blocked: float | None
    overhead: float | None
    steps_per_s: float | None


@dataclass(frozen=True, slots=True)
class Crowd:
    """Ranks in the same state.

    Attributes:
        ranks: The ranks, such as `0-7,16`.
        count: Number of ranks.
        state: A value of `RankState`.
        named: Whether the verdict on the ongoing stall names them.
        operation: The operation that they wait in or are missing in; '' if there is none.
        group: Name of that operation's group.
        age_s: The highest of their ages; None without an operation.
        steps: Their lowest and highest step.
    """

    ranks: str
    count: int
    state: str
    named: bool
    operation: str
    group: str
    age_s: float | None
    steps: tuple[int, int]


def rank_rows(
    world: WorldSnapshot,
    blame: KnownStall | None,
    lines: Mapping[int, str],
    threshold_s: float,
    samples: Mapping[int, Sequence[Sample]],
    now_ns: int,
) -> list[RankRow]:
    """Describe every rank of a run, ascending.

    Args:
        world: The ranks.
        blame: The ongoing stall; None if there is none.
        lines: Lines of code of the blamed ranks, by rank.
        threshold_s: Age from which a wait in an operation is a stall.
        samples: Samples of the counters, by nonce.
        now_ns: Monotonic time.
    """
    rows: list[RankRow] = []
    for view in world.ranks.values():
        naming_stall = blame if blame is not None and view.rank in blame.ranks else None
        current = _current_operation(view, naming_stall, lines.get(view.rank, ""), now_ns)
        state = _state(view, naming_stall, current, threshold_s, now_ns)
        if state is RankState.DEAD and blame is not None and blame.ranks and naming_stall is None:
            state = RankState.FOLLOWED
        rows.append(
            _row(view, state, naming_stall is not None, current, _Rates.of(samples.get(view.nonce, ()), now_ns), now_ns)
        )
    rows += [
        _unreachable(rank, host, world.other_versions.get(host, ""), blame)
        for rank, host in world.unreachable.items()
        if rank not in world.ranks
    ]
    return sorted(rows, key=lambda row: row.rank)


@dataclass(frozen=True, slots=True)
class _CurrentOperation:
    """The operation that a rank waits in, or is missing in; attributes as in `RankRow`."""

    operation: str = ""
    group: str = ""
    age_s: float | None = None
    line: str = ""
    remote: RankState | None = None
    """State of an RPC worker that is in no operation; None for other ranks."""


def _current_operation(view: RankView, blame: KnownStall | None, line: str, now_ns: int) -> _CurrentOperation:
    """Return the operation that a rank waits in or is missing in. Only blamed ranks have `blame` and `line`."""
    waits = [operation for operation in view.open if operation.waiting_since_ns is not None]
    wait = min(waits, key=lambda operation: operation.waiting_since_ns or 0, default=None)
    if wait is None and blame is not None and blame.names_the_missing:
        missing = f"{NOT_IN}{_numbered(blame.operation, blame.operation_id.sequence)}"
        return _CurrentOperation(missing, blame.group, _age_s(blame.since_ns, now_ns), line)
    if view.is_over and blame is None:
        return _CurrentOperation(line=line)
    if wait is None:
        return _remote(view.worker, now_ns) or _CurrentOperation(line=line)
    operation_text = _numbered(shown(wait.name), wait.operation_id.sequence)
    age_s = _age_s(wait.waiting_since_ns, now_ns)
    return _CurrentOperation(
        operation_text, shown_group(wait.group, wait.label), age_s, line or shown_call_path(wait.call_site, wait.path)
    )


def _remote(worker: WorkerView | None, now_ns: int) -> _CurrentOperation | None:
    """Return the state of an RPC worker that is in no operation: its oldest open call, or the call that it serves."""
    if worker is None:
        return None
    for name, since_ns in (("init_rpc", worker.joins_since_ns), ("rpc.shutdown", worker.leaves_since_ns)):
        if since_ns is not None and now_ns - since_ns >= WAITS_NS and not worker.calls:
            return _CurrentOperation(name, age_s=_age_s(since_ns, now_ns), remote=RankState.WAITING)
    call = next(iter(worker.calls), None)
    if call is None or now_ns - call.since_ns < WAITS_NS:
        return None
    state = RankState.SERVING if call.is_served else RankState.CALLING
    return _CurrentOperation(
        shown(call.text), age_s=_age_s(call.since_ns, now_ns), line=shown_line(call.call_site), remote=state
    )


def _age_s(since_ns: int | None, now_ns: int) -> float | None:
    return None if since_ns is None else max(now_ns - since_ns, 0) / 1e9


def _numbered(name: str, sequence: int) -> str:
    return f"{name} #{sequence}" if sequence else name


def _row(
    view: RankView, state: RankState, named: bool, current: _CurrentOperation, rates: _Rates, now_ns: int
) -> RankRow:
    return RankRow(
        rank=view.rank,
        host=shown(view.host),
        state=state.value,
        named=named,
        operation=current.operation,
        group=current.group,
        age_s=current.age_s,
        line=current.line,
        step=view.step,
        heartbeat_s=None if state in OVER else _age_s(view.heartbeat_ns, now_ns),
        communicating=rates.communicating,
        blocked=rates.blocked,
        overhead=rates.overhead,
        steps_per_s=rates.steps_per_s,
    )


def starting(rank: int) -> RankRow:
    """Return the row of a rank that has no tape yet."""
    return RankRow(rank, "", RankState.STARTING.value, False, "", "", None, "", 0, None, None, None, None, None)


def _unreachable(rank: int, host: str, version: str, blame: KnownStall | None) -> RankRow:
    named = blame is not None and rank in blame.ranks
    state = RankState.UNREACHABLE.value
    why = shown(f"its agent is of otel-torchdist {version}, another version") if version else ""
    return RankRow(rank, shown(host), state, named, why, "", None, "", 0, None, None, None, None, None)


def _state(
    view: RankView, blame: KnownStall | None, current: _CurrentOperation, threshold_s: float, now_ns: int
) -> RankState:
    """Return a rank's state. `blame` is given only if it names this rank."""
    life = life_in(view)
    if view.switched_off_ns:
        return RankState.SWITCHED_OFF
    if life in _ENDS:
        return _ENDS[life]
    if view.stopped is not None and view.stopped.is_frozen(now_ns):
        return RankState.STOPPED
    if blame is not None and blame.kind is VerdictKind.FROZEN:
        return RankState.STOPPED
    if blame is not None and blame.names_the_missing:
        return RankState.ABSENT
    if current.remote is not None:
        return current.remote
    if current.age_s is None or current.age_s * 1e9 < WAITS_NS:
        return RankState.RUNNING
    return RankState.STALLED if current.age_s >= threshold_s else RankState.WAITING


@dataclass(frozen=True, slots=True)
class _Rates:
    """Attributes as in `RankRow`."""

    communicating: float | None = None
    blocked: float | None = None
    overhead: float | None = None
    steps_per_s: float | None = None

    @classmethod
    def of(cls, samples: Sequence[Sample], now_ns: int) -> _Rates:
        """Compare the newest sample with the oldest sample of the last 10 s."""
        first = next((sample for sample in samples if sample.at_ns >= now_ns - RATES_OVER_NS), None)
        last = samples[-1] if samples else None
        if first is None or last is None or last.at_ns <= first.at_ns:
            return cls()
        span_ns = last.at_ns - first.at_ns
        return cls(
            communicating=_share(last.communicating_ns - first.communicating_ns, span_ns),
            blocked=_share(last.blocked_ns - first.blocked_ns, span_ns),
            overhead=_share(last.overhead_ns - first.overhead_ns, span_ns),
            steps_per_s=max(last.step - first.step, 0) / span_ns * 1e9,
        )


def _share(part_ns: int, whole_ns: int) -> float:
    return round(min(max(part_ns / whole_ns, 0.0), 1.0), 6)


def crowds(rows: Iterable[RankRow]) -> tuple[Crowd, ...]:
    """Group ranks in the same state. Crowds that need attention come first, then the largest."""
    members_by_state: dict[tuple[bool, str, str, str], list[RankRow]] = {}
    for row in rows:
        waits = row.state != RankState.RUNNING.value
        key = row.named, row.state, row.operation if waits else "", row.group if waits else ""
        members_by_state.setdefault(key, []).append(row)
    ordered = sorted(members_by_state.items(), key=lambda crowd: (not crowd[0][0], _ORDER[crowd[0][1]], -len(crowd[1])))
    return tuple(_crowd(key, members) for key, members in ordered[:MAX_CROWDS])


def _crowd(key: tuple[bool, str, str, str], members: Sequence[RankRow]) -> Crowd:
    named, state, operation, group = key
    ages = [row.age_s for row in members if row.age_s is not None and operation]
    steps = [row.step for row in members]
    ranks = compress_ranks(row.rank for row in members)
    return Crowd(ranks, len(members), state, named, operation, group, max(ages, default=None), (min(steps), max(steps)))
