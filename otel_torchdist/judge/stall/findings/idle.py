"""Detects that a whole job is idle outside of operations, and later that it has continued."""

from __future__ import annotations

from typing import Final

from otel_torchdist.judge.stall.attributes import of_frame
from otel_torchdist.judge.verdict.idle import Idle, IdlePlace, idle_of, idle_place_of, last_called_ns
from otel_torchdist.judge.verdict.wording.places import describe_idle
from otel_torchdist.model.reports.finding import Finding, FindingKind, FindingOver, JudgedWorld, Severity
from otel_torchdist.model.snapshot import WorldSnapshot
from otel_torchdist.telemetry import semconv

LONGEST_PASS_NS: Final = 1_500_000_000
"""Maximum time in ns counted between two passes. The whole job, or this process, may have been suspended meanwhile."""


class IdleFinder:
    """Tracks the time for which all ranks of a run have been at the same lines without a call."""

    def __init__(self, min_ns: int) -> None:
        """Report idleness longer than `min_ns` and than usual for the job; none if `min_ns` is 0."""
        self.gone: Idle | None = None
        self._min_ns = min_ns
        self._reported: Idle | None = None
        self._places: dict[int, IdlePlace] = {}
        self._called_ns: dict[int, int] = {}
        self._lasting: Idle | None = None
        self._lasted_ns = 0
        self._before_ns: int | None = None

    def find(self, world: WorldSnapshot) -> Idle | None:
        """Return a newly idle job, or None. Afterwards, `gone` is the former idle job that has continued."""
        before_ns, self._before_ns = self._before_ns, world.taken_ns
        passed_ns = min(world.taken_ns - before_ns, LONGEST_PASS_NS) if before_ns is not None else 0
        self._update_places(world)
        now = idle_of(world, self._places) if self._min_ns else None
        is_same = now is not None and self._lasting is not None and _is_same(now, self._lasting)
        self._lasted_ns = self._lasted_ns + passed_ns if is_same else 0
        self._lasting = now
        self.gone = None
        if self._reported is not None and (now is None or now.since_ns != self._reported.since_ns):
            self.gone, self._reported = self._reported, None
        if now is None or self._reported is not None or not now.is_long(self._lasted_ns, self._min_ns):
            return None
        self._reported = now
        return now

    def report(self, judged: JudgedWorld) -> list[Finding | FindingOver]:
        """Return the finding that is over, and the new one."""
        new = self.find(judged.world)
        over = [FindingOver(FindingKind.IDLE, judged.run, self.gone.ranks)] if self.gone is not None else []
        return [*over, *([finding_of(new, judged)] if new is not None else [])]

    def _update_places(self, world: WorldSnapshot) -> None:
        """Record the lines at which ranks are idle. The previous line is kept until a new stack arrives."""
        called_ns = {view.nonce: last_called_ns(view) for view in world.ranks.values()}
        self._places = {
            nonce: place for nonce, place in self._places.items() if called_ns.get(nonce) == self._called_ns.get(nonce)
        }
        self._called_ns = called_ns
        for view in world.ranks.values():
            if view.stacks is None or view.stacks.threads is None:
                continue
            place = idle_place_of(view)
            if place is not None:
                self._places[view.nonce] = place
            else:
                self._places.pop(view.nonce, None)


def finding_of(idle: Idle, judged: JudgedWorld) -> Finding:
    """Return the finding on an idle job."""
    lasted_s = (judged.world.taken_ns - idle.since_ns) / 1e9
    return Finding(
        kind=FindingKind.IDLE,
        severity=Severity.WARNING,
        incident=judged.incident(f"idle {idle.since_ns}"),
        ranks=idle.ranks,
        group="",
        operation="",
        text=describe_idle(idle, lasted_s),
        world=judged.world,
        attributes={semconv.STALL_AGE: lasted_s, **of_frame(idle.places[idle.ranks[0]].frame)},
    )


def _is_same(now: Idle, before: Idle) -> bool:
    return now.since_ns == before.since_ns and now.places == before.places
