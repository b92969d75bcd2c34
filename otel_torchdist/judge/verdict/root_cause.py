"""The search for the operation that holds up all other stalled operations of a run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from otel_torchdist.judge.verdict.earlier_verdict import has_failed_by_departure, is_canceled, names_departed
from otel_torchdist.judge.verdict.first_death import first_death
from otel_torchdist.judge.verdict.judging.judge import Judge
from otel_torchdist.judge.verdict.rules import Wait, blocked_by_deaths, died_in, interrupted_by_deaths, is_expected
from otel_torchdist.judge.verdict.verdict import Verdict, urgency
from otel_torchdist.model.calls import Channel, OperationId, OperationView
from otel_torchdist.model.reports.verdict_kinds import VerdictKind
from otel_torchdist.model.snapshot import WorldSnapshot

MAX_CANDIDATES: Final = 64


class RootFinder:
    """Finds root causes in snapshots of one run. Remembers only whether the run's deaths have been explained."""

    def __init__(self, threshold_ns: int) -> None:
        """Treat operations that all ranks have entered as stuck after `threshold_ns`."""
        self._threshold_ns = threshold_ns
        self._death_reported = False

    @property
    def is_death_reported(self) -> bool:
        """Whether the deaths of this run are explained; see `mark_death_reported`."""
        return self._death_reported

    def mark_death_reported(self) -> None:
        """Ignore later deaths: a verdict `dead` was given, or a hung job is being ended."""
        self._death_reported = True

    def find(self, world: WorldSnapshot, stalled: list[Wait], current: Verdict | None) -> Verdict | None:
        """Return the verdict on the operation that holds up all others.

        Args:
            world: The snapshot.
            stalled: Waits beyond the threshold, the longest first.
            current: The latest verdict on an ongoing incident.

        Returns: None if nothing stalls, or if all ranks have reached the root operation and it is about to end.
        """
        deaths, of_dead = set[OperationId](), set[OperationId]()
        if not self._death_reported:
            deaths = blocked_by_deaths(world, _alive_at(world)) | interrupted_by_deaths(world)
            of_dead = died_in(world)
        is_over = not self._death_reported and not any(view.alive for view in world.ranks.values())
        if not stalled and not deaths and not of_dead and current is None and not is_over:
            return None
        judge = Judge(world, self._threshold_ns)
        kept = judge.verdict_on(current.operation_id) if current is not None else None
        if current is not None and kept is None:
            return None
        others = [judge.verdict_on(operation_id) for operation_id in _first_of_each_channel(stalled)]
        verdicts = [
            kept,
            *(candidate for candidate in others if candidate is not None and not is_canceled(candidate, world)),
        ]
        # If all ranks died between two passes, their order is unknown, but mismatched calls are still evidence.
        explaining = {operation_id: judge.verdict_on(operation_id) for operation_id in deaths | of_dead}
        verdicts += [
            candidate
            for operation_id, candidate in explaining.items()
            if candidate is not None and _explains(candidate, operation_id in deaths, world)
        ]
        candidates = [verdict for verdict in verdicts if verdict is not None]
        has_departed = any(candidate is not None and names_departed(candidate) for candidate in explaining.values())
        if not candidates and is_over and not has_departed:
            candidates = [candidate for candidate in (_after_the_end(world, judge),) if candidate is not None]
        unexpected = [verdict for verdict in candidates if _blames(verdict) and not is_expected(world, verdict)]
        # An expected long wait does not hide an unexpected one.
        best = min(unexpected or candidates, key=urgency, default=None)
        if current is None or kept is None or best is None:
            return best
        # Of equally urgent verdicts, keep the reported one.
        return kept if kept.operation_id == current.operation_id and kept.kind is best.kind else best

    def held_up(self, world: WorldSnapshot, waits: list[Wait], verdict: Verdict) -> list[Wait]:
        """Return the waits caused by a verdict that is reported before the threshold."""
        if not verdict.kind.traits.is_final or not waits:
            return []
        judge = Judge(world, self._threshold_ns)
        leads = {operation_id: judge.verdict_on(operation_id) for operation_id in _first_of_each_channel(waits)}
        channels = {
            operation_id.channel
            for operation_id, lead in leads.items()
            if lead is not None and lead.agrees_with(verdict)
        }
        return [wait for wait in waits if wait.operation.operation_id.channel in channels]


def _blames(verdict: Verdict) -> bool:
    """Return whether a verdict names a culprit: ranks, or calls."""
    return verdict.kind.traits.is_of_calls or (verdict.kind is not VerdictKind.UNKNOWN and bool(verdict.ranks))


def _explains(verdict: Verdict, is_blocked_by_death: bool, world: WorldSnapshot) -> bool:
    """Return whether a verdict on an operation in which ranks died or failed explains why."""
    if verdict.kind is VerdictKind.DEAD:
        return is_blocked_by_death or _was_seen(verdict, world)
    return verdict.kind.traits.is_of_calls or has_failed_by_departure(verdict, world)


def _was_seen(verdict: Verdict, world: WorldSnapshot) -> bool:
    """Return whether the deaths were observed as they happened, in a run that was already watched."""
    first = verdict.first
    return first is not None and first.is_known and any(world.ranks[rank].seen_alive_ns for rank in first.ranks)


def _after_the_end(world: WorldSnapshot, judge: Judge) -> Verdict | None:
    """Return the verdict on a finished run in which no rank was inside an operation at the first death."""
    views = world.ranks.values()
    first = first_death(tuple(views))
    if first is None or first.together or not first.is_known or first.lead_ns is None:
        return None
    lasts = [view.last for view in views if view.last is not None and _is_shared(view.last, first.ranks)]
    last = max(lasts, key=lambda operation: operation.record.completed_ns or 0, default=None)
    verdict = judge.verdict_after(last.operation_id) if last is not None else None
    return verdict if verdict is not None and _was_seen(verdict, world) else None


def _is_shared(operation: OperationView, ranks: tuple[int, ...]) -> bool:
    return operation.group is not None and operation.group.members >= {*ranks}


def _alive_at(world: WorldSnapshot) -> dict[int, int]:
    return {rank: view.seen_alive_ns for rank, view in world.ranks.items() if view.seen_alive_ns}


def _first_of_each_channel(stalled: Iterable[Wait]) -> list[OperationId]:
    """Return the first operation of each channel. Only it can be a cause, since later ones wait for it."""
    first: dict[Channel, OperationId] = {}
    for wait in stalled:
        operation_id = wait.operation.operation_id
        if operation_id.channel not in first and len(first) == MAX_CANDIDATES:
            break
        first[operation_id.channel] = min(first.get(operation_id.channel, operation_id), operation_id)
    return list(first.values())
