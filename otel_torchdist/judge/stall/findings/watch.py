"""Runs the finders of one run, each at its own interval, and limits their reports."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from otel_torchdist.judge.stall.findings import silent_mismatch, stragglers
from otel_torchdist.judge.stall.findings.checkpoints import FailedSaves
from otel_torchdist.judge.stall.findings.diverged import Diverged, DivergenceFinder
from otel_torchdist.judge.stall.findings.non_finite import NonFinite, NonFiniteFinder
from otel_torchdist.judge.stall.findings.shared_groups import SharedGroupFinder
from otel_torchdist.judge.stall.findings.silent_mismatch import SilentMismatches
from otel_torchdist.judge.stall.findings.stragglers import ArrivalsCompared, Stragglers
from otel_torchdist.judge.verdict.judging.mismatched import ended_well
from otel_torchdist.judge.verdict.verdict import Verdict
from otel_torchdist.judge.world.mismatch import Mismatch
from otel_torchdist.model.calls import Channel, OperationId
from otel_torchdist.model.reports.finding import Finding, FindingOver, JudgedWorld
from otel_torchdist.model.snapshot import RankView, WorldSnapshot

CONCLUDED_AFTER_NS: Final = 4_000_000_000
"""Time in ns for which an agent waits, after the end of its ranks, for comparisons with other nodes."""
ALL_READ_AFTER_NS: Final = 500_000_000
"""Time in ns after the end of all ranks within which their last records are read."""
MAX_STRAGGLERS: Final = 64
"""Maximum number of stragglers reported for a run. More would add no information."""


class Reportable(Protocol):
    """An observation that becomes a finding."""

    def finding(self, judged: JudgedWorld) -> Finding:
        """Return the finding on this observation."""
        ...


class Finder(Protocol):
    """Checks the ranks of one run."""

    def find(self, world: WorldSnapshot, is_last: bool = False) -> Sequence[Reportable]:
        """Return the observations to report now. At the end of a run, report immediately."""
        ...


class LastingFinder(Protocol):
    """Checks the ranks of one run for conditions that last."""

    def report(self, judged: JudgedWorld) -> Sequence[Finding | FindingOver]:
        """Return the new findings, and the findings that are over."""
        ...


class FindingWatch:
    """Runs all finders on one run, and decides when its last comparisons are made.

    Args:
        compares_calls: Whether ranks' calls and arrivals are compared. Values and checkpoints are always checked.
    """

    def __init__(self, compares_calls: bool = True) -> None:
        self._compares_calls = compares_calls
        self._silent = SilentMismatches()
        self._stragglers = Stragglers()
        self._shared_groups = SharedGroupFinder()
        always: tuple[Finder, ...] = (ValueFinder(), FailedSaves())
        self._finders = (*always, self._shared_groups) if compares_calls else always
        self._reported = 0
        self._over_ns: int | None = None
        self._all_over_ns: int | None = None
        self._is_concluded = False
        self._is_left_to_another = False

    @property
    def wanted_calls(self) -> frozenset[tuple[Channel, int]]:
        """Windows of calls of other nodes' ranks that should be sent in full."""
        return self._silent.wanted

    def is_concluding(self, local: WorldSnapshot) -> bool:
        """Return whether all ranks of this node have ended, but may still be compared with ranks of other nodes.

        Args:
            local: A snapshot of this node's ranks.
        """
        self._over_ns = _over_since(local, self._over_ns)
        if self._over_ns is None:
            self._is_concluded = False
            return False
        return not self._is_concluded and local.taken_ns - self._over_ns < CONCLUDED_AFTER_NS

    def compare(self, judged: JudgedWorld, cause: Mismatch | None) -> list[Finding | FindingOver | ArrivalsCompared]:
        """Process a snapshot.

        Args:
            judged: The snapshot.
            cause: The mismatch reported as the cause of a stall, or None.
        """
        world = judged.world
        if self._is_left_to_another:
            return self.find_stragglers(judged)
        if cause is not None:
            self._silent.mark_reported(cause)
        silent = self._silent.find(world) if self._compares_calls else []
        findings = [silent_mismatch.finding_of(mismatch, judged) for mismatch in silent]
        findings += self._run_finders(judged)
        self._all_over_ns = _over_since(world, self._all_over_ns)
        if self._all_over_ns is None or world.taken_ns - self._all_over_ns < _settling_ns(world):
            self._is_concluded = False
        elif not self._is_concluded:
            is_last = world.taken_ns - self._all_over_ns >= CONCLUDED_AFTER_NS
            findings += self.conclude(judged, is_last)
            self._is_concluded = not self._silent.wanted
        return [*findings, *self.find_stragglers(judged)]

    def conclude(self, judged: JudgedWorld, is_last: bool = True, cause: Mismatch | None = None) -> list[Finding]:
        """Finish the comparisons. See `compare` for arguments. Operations still open are left to stall detection."""
        if self._is_left_to_another:
            return []
        if cause is not None:
            self._silent.mark_reported(cause)
        world = judged.world
        concluded = self._silent.conclude(world, is_last) if self._compares_calls else []
        findings = self._run_finders(judged, is_last=True)
        return findings + [
            silent_mismatch.finding_of(mismatch, judged)
            for mismatch in concluded
            if ended_well(
                [view for view in world.in_order if _takes_part(view, mismatch.operation_id)], mismatch.operation_id
            )
        ]

    def explained(self, verdict: Verdict) -> None:
        """Record that the verdict on a stall reports a shared group, so that no finding repeats it."""
        if verdict.sharing is not None:
            self._shared_groups.leave(verdict.sharing.example.group)

    def _run_finders(self, judged: JudgedWorld, is_last: bool = False) -> list[Finding]:
        return [
            observation.finding(judged)
            for finder in self._finders
            for observation in finder.find(judged.world, is_last)
        ]

    def leave_to_another(self, local: WorldSnapshot) -> None:
        """Leave comparisons to the judging agent, which sees all ranks, once the ranks of this node are over.

        The judging agent may exit first. This agent then sees only some ranks, but has already reported them.
        """
        self._is_left_to_another = _over_since(local, None) is not None

    def find_stragglers(self, judged: JudgedWorld) -> list[Finding | FindingOver | ArrivalsCompared]:
        """Check for stragglers only, while another agent compares the calls."""
        if not self._compares_calls:
            return []
        late = self._stragglers.find(judged.world)[: MAX_STRAGGLERS - self._reported]
        self._reported += len(late)
        reports: list[Finding | FindingOver | ArrivalsCompared] = [straggler.finding(judged) for straggler in late]
        reports += [stragglers.over_of(channel, rank, judged.run) for channel, rank in self._stragglers.gone]
        if self._stragglers.lateness:
            reports.append(ArrivalsCompared(judged.run, tuple(self._stragglers.lateness)))
        return reports


def _settling_ns(world: WorldSnapshot) -> int:
    """Return the time between the end of the ranks and their final comparison.

    When the end of a process is observed, its last records may not have been read yet. And agents of other nodes may
    start, and connect, only after the end of a short job.
    """
    members = {rank for view in world.ranks.values() for group in view.groups.values() for rank in group.members}
    return ALL_READ_AFTER_NS if members <= world.ranks.keys() else CONCLUDED_AFTER_NS


def _over_since(world: WorldSnapshot, before_ns: int | None) -> int | None:
    """Return the time of the first snapshot in which all ranks had ended; None if a rank has not ended."""
    if not all(view.is_over for view in world.ranks.values()):
        return None
    return world.taken_ns if before_ns is None else before_ns


def _takes_part(view: RankView, operation_id: OperationId) -> bool:
    """Return whether a live rank takes part in an operation. A rank that is over makes no more calls."""
    return not view.is_over and operation_id.channel in view.progress


# --- values -----------------------------------------------------------------------------------------------------------
# Detects bad values, at bounded cost and a bounded number of times.


PASSES_APART_NS: Final = 1_000_000_000
MAX_REPORTED: Final = 16
"""Maximum number of findings about values in a run. More would add no information."""


class ValueFinder:
    """Compares the values of one run's ranks."""

    def __init__(self) -> None:
        self._non_finite = NonFiniteFinder()
        self._diverged = DivergenceFinder()
        self._compared_ns = 0
        self._reported = 0

    def find(self, world: WorldSnapshot, is_last: bool = False) -> list[NonFinite | Diverged]:
        """Return the observations to report now. At the end of a run, report immediately."""
        if not is_last and world.taken_ns - self._compared_ns < PASSES_APART_NS:
            return []
        self._compared_ns = world.taken_ns
        observations = [*self._non_finite.find(world, is_last), *self._diverged.find(world, is_last)]
        observations = observations[: MAX_REPORTED - self._reported]
        self._reported += len(observations)
        return observations
