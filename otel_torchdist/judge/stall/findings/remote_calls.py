"""Detects remote procedure calls that cannot proceed.

An open call proves nothing: it may last as long as training. It is a finding only if something proves that it cannot
end: the process that should run it is stopped or gone, or every thread that could serve or answer it is waiting.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from otel_torchdist.judge.verdict.wording.ends import describe_death
from otel_torchdist.judge.verdict.wording.sentence import with_short_start
from otel_torchdist.model.remote_calls import CallView
from otel_torchdist.model.reports.finding import Finding, FindingKind, FindingOver, JudgedWorld, Severity
from otel_torchdist.model.snapshot import RankView, WorldSnapshot
from otel_torchdist.model.text import name_ranks, seconds
from otel_torchdist.telemetry import semconv

LONGEST_PASS_NS: Final = 1_500_000_000
"""Maximum time in ns counted between two passes. The whole job, or this process, may have been suspended meanwhile."""
DEAD_FOR_NS: Final = 1_000_000_000
"""Time in ns for which other ranks must outlive a death. If they die sooner, a launcher has ended the whole job."""
MAX_NAMED: Final = 3


@dataclass(frozen=True, slots=True)
class TroubledCalls:
    """Calls that cannot proceed.

    Attributes:
        kind: The reason: `STARVED`, `FROZEN` or `DEAD`.
        ranks: Ranks that hold the calls up, ascending.
        function: Function of the oldest of these calls; '' if there is none.
        since_ns: When the oldest call was made.
        calls: Identity of the calls, to recognize them in the next pass.
        text: The finding as a sentence.
    """

    kind: FindingKind
    ranks: tuple[int, ...]
    function: str
    since_ns: int
    calls: frozenset[tuple[int, int, int]]
    text: str

    @property
    def key(self) -> tuple[FindingKind, tuple[int, ...], frozenset[tuple[int, int, int]]]:
        """Key that identifies the same trouble in the next pass."""
        return self.kind, self.ranks, self.calls

    def over(self, run: int) -> FindingOver:
        """Return the event that ends this finding, because the calls proceed or have ended."""
        return FindingOver(self.kind, run, self.ranks)

    def finding(self, judged: JudgedWorld) -> Finding:
        """Return the finding on calls that cannot proceed."""
        taken_ns = judged.world.taken_ns
        return Finding(
            kind=self.kind,
            severity=Severity.ERROR,
            incident=judged.incident(f"calls {self.kind.value} {taken_ns}"),
            ranks=self.ranks,
            group="",
            operation=semconv.REMOTE_CALL,
            text=with_short_start(self.text),
            world=judged.world,
            attributes={
                semconv.OPERATION: semconv.REMOTE_CALL,
                semconv.STALL_AGE: (taken_ns - self.since_ns) / 1e9,
                **({semconv.RPC_METHOD: self.function} if self.function else {}),
            },
        )


def troubled_calls(world: WorldSnapshot) -> list[TroubledCalls]:
    """Return the calls that cannot proceed at this moment."""
    by_name = {view.worker.name: view for view in world.in_order if view.worker is not None}
    troubles = [*_dead(world), *_frozen(world, by_name)]
    starved = _starved(by_name)
    return [*troubles, _of_starved(starved, by_name)] if starved else troubles


class TroubleFinder:
    """Reports troubled calls that last for the threshold, each once."""

    def __init__(self, threshold_ns: int) -> None:
        self.gone: list[TroubledCalls] = []
        self._threshold_ns = threshold_ns
        self._lasted_ns: dict[object, int] = {}
        self._reported: dict[object, TroubledCalls] = {}
        self._before_ns: int | None = None

    def find(self, world: WorldSnapshot) -> list[TroubledCalls]:
        """Return the new troubled calls. Afterwards, `gone` holds the former ones."""
        before_ns, self._before_ns = self._before_ns, world.taken_ns
        passed_ns = min(world.taken_ns - before_ns, LONGEST_PASS_NS) if before_ns is not None else 0
        now = {trouble.key: trouble for trouble in troubled_calls(world)}
        self._lasted_ns = {key: self._lasted_ns.get(key, -passed_ns) + passed_ns for key in now}
        self.gone = [trouble for key, trouble in self._reported.items() if key not in now]
        self._reported = {key: trouble for key, trouble in self._reported.items() if key in now}
        new = {
            key: trouble for key, trouble in now.items() if key not in self._reported and self._has_lasted(key, trouble)
        }
        self._reported |= new
        return list(new.values())

    def report(self, judged: JudgedWorld) -> list[Finding | FindingOver]:
        """Return the new findings, and the findings that are over. Runs without workers have none."""
        if all(view.worker is None for view in judged.world.ranks.values()):
            return []
        findings = [trouble.finding(judged) for trouble in self.find(judged.world)]
        return [*findings, *(trouble.over(judged.run) for trouble in self.gone)]

    def _has_lasted(self, key: object, trouble: TroubledCalls) -> bool:
        return trouble.kind is FindingKind.DEAD or self._lasted_ns[key] >= self._threshold_ns


def _dead(world: WorldSnapshot) -> list[TroubledCalls]:
    """Return the first dead workers, if others are alive. Deaths of ranks with groups are left to verdicts."""
    workers = [view for view in world.in_order if view.worker is not None and not view.groups]
    gone = [(view, view.gone_since_ns) for view in workers if view.is_dead and view.gone_since_ns is not None]
    first_ns = min((since_ns for _, since_ns in gone), default=None)
    if first_ns is None or world.taken_ns - first_ns < DEAD_FOR_NS or not any(view.alive for view in workers):
        return []
    first = [view for view, since_ns in gone if since_ns - first_ns < DEAD_FOR_NS]
    ranks = tuple(view.rank for view in first)
    text = f"{_names(first)} are dead: calls to them fail"
    if len(first) == 1:
        death = first[0].death
        way = describe_death(death, first[0].failure) if death is not None else ""
        text = f"{_names(first)} {way or 'is dead'}: calls to it fail"
    return [TroubledCalls(FindingKind.DEAD, ranks, "", first_ns, frozenset(), text)]


def _frozen(world: WorldSnapshot, by_name: Mapping[str, RankView]) -> list[TroubledCalls]:
    """Return the workers stopped by the kernel for which running workers wait."""
    troubles: list[TroubledCalls] = []
    for name, view in by_name.items():
        stopped = view.stopped
        if stopped is None or not view.alive or not stopped.is_frozen(world.taken_ns):
            continue
        waits = {
            caller.rank: min(calls, key=lambda call: call.since_ns)
            for caller in by_name.values()
            if caller.alive and caller.stopped is None and (calls := _calls_to(caller, name))
        }
        if not waits:
            continue
        oldest = min(waits.values(), key=lambda call: call.since_ns)
        age_s = (world.taken_ns - oldest.since_ns) / 1e9
        text = (
            f"{_names([view])} does not run, because it is {stopped.meaning}: "
            f"{name_ranks(sorted(waits))} {'has' if len(waits) == 1 else 'have'} called it, {oldest.function} for "
            f"{seconds(age_s)}"
        )
        calls = frozenset((rank, call.thread, call.since_ns) for rank, call in waits.items())
        troubles.append(TroubledCalls(FindingKind.FROZEN, (view.rank,), oldest.function, oldest.since_ns, calls, text))
    return troubles


def _calls_to(caller: RankView, name: str) -> list[CallView]:
    return [call for call in caller.worker.made if call.peer == name] if caller.worker is not None else []


def _starved(by_name: Mapping[str, RankView]) -> dict[str, list[CallView]]:
    """Return, by name, workers whose threads all wait for starved workers, and the calls they wait in."""
    waiting = {name: calls for name, view in by_name.items() if view.alive and (calls := _waits_of_full_pool(view))}
    while True:
        left = {name: calls for name, calls in waiting.items() if all(call.peer in waiting for call in calls)}
        if len(left) == len(waiting):
            return waiting
        waiting = left


def _waits_of_full_pool(view: RankView) -> list[CallView]:
    """Return the call that each serving thread waits in; empty if any thread is free or busy."""
    worker = view.worker
    if worker is None or not worker.threads:
        return []
    busy = {call.thread for call in worker.served if call.holds_thread}
    if len(busy) < worker.threads:
        return []
    newest = {call.thread: call for call in worker.made if call.holds_thread and call.thread in busy}
    return list(newest.values()) if len(newest) == len(busy) else []


def _of_starved(starved: Mapping[str, list[CallView]], by_name: Mapping[str, RankView]) -> TroubledCalls:
    ranks = tuple(sorted(by_name[name].rank for name in starved))
    calls = [call for waits_of in starved.values() for call in waits_of]
    oldest = min(calls, key=lambda call: call.since_ns)
    waits = [
        f"all {len(waits_of)} RPC threads of {_names([by_name[name]])} wait for {_peers(waits_of)}"
        for name, waits_of in list(starved.items())[:MAX_NAMED]
    ]
    more = f" (and {len(starved) - MAX_NAMED} more workers)" if len(starved) > MAX_NAMED else ""
    text = f"{', and '.join(waits)}{more}; calls are served, answered and timed out on these threads, so none can end"
    return TroubledCalls(
        FindingKind.STARVED,
        ranks,
        oldest.function,
        oldest.since_ns,
        frozenset(
            (by_name[name].rank, call.thread, call.since_ns) for name, waits_of in starved.items() for call in waits_of
        ),
        text,
    )


def _peers(calls: list[CallView]) -> str:
    names = sorted({call.peer for call in calls})
    return ", ".join(names[:MAX_NAMED]) + (f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else "")


def _names(views: list[RankView]) -> str:
    """Name workers with their ranks: `worker1 (rank 1)`."""
    shown = [f"{view.worker.name} (rank {view.rank})" for view in views[:MAX_NAMED] if view.worker is not None]
    return ", ".join(shown) + (f" and {len(views) - MAX_NAMED} more" if len(views) > MAX_NAMED else "")
