"""Findings without a stall: calls that do not match, and ranks that are always last."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from otel_torchdist.model.calls import Channel, OperationId
from otel_torchdist.model.incident import Incident, incident_name
from otel_torchdist.model.snapshot import RankView, WorldSnapshot
from otel_torchdist.stall.findings.checkpoints import FailedSaves, SaveFailed
from otel_torchdist.stall.findings.events import (
    ArrivalsCompared,
    FindingEvent,
    MismatchFound,
    ProblemFound,
    StragglerFound,
    StragglerGone,
    ValuesFound,
)
from otel_torchdist.stall.findings.shared_groups import GroupShared, SharedGroupFinder
from otel_torchdist.stall.findings.silent_mismatch import SilentMismatches
from otel_torchdist.stall.findings.stragglers import Stragglers
from otel_torchdist.stall.findings.values import Diverged, NonFinite, ValueFinder
from otel_torchdist.verdict.judging.judge import ended_well
from otel_torchdist.verdict.model import Verdict
from otel_torchdist.world.mismatch import Mismatch

CONCLUDED_AFTER_NS: Final = 4_000_000_000
"""How long after the end of its ranks an agent waits for comparisons with those of other nodes."""
ALL_READ_AFTER_NS: Final = 500_000_000
MAX_STRAGGLERS: Final = 64
"""Maximum stragglers reported for a run over its whole lifetime; more would add no information."""


class FindingWatch:
    """Compares the ranks of one run."""

    def __init__(self) -> None:
        self._silent = SilentMismatches()
        self._stragglers = Stragglers()
        self._values = ValueFinder()
        self._failed_saves = FailedSaves()
        self._shared_groups = SharedGroupFinder()
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
        """Whether the ranks of this node are over, while comparisons with those of other nodes may not be.

        Args:
            local: A snapshot of this node's ranks.
        """
        self._over_ns = _over_since(local, self._over_ns)
        if self._over_ns is None:
            self._is_concluded = False
            return False
        return not self._is_concluded and local.taken_ns - self._over_ns < CONCLUDED_AFTER_NS

    def compare(self, world: WorldSnapshot, run: int, agent_id: int, cause: Mismatch | None) -> list[FindingEvent]:
        """Process a snapshot.

        Args:
            world: The snapshot.
            run: Id of its run, or a substitute.
            agent_id: See `Incident`.
            cause: The mismatch that has been reported as the cause of a stall, if any.
        """
        if self._is_left_to_another:
            return self.find_stragglers(world, run, agent_id)
        if cause is not None:
            self._silent.mark_reported(cause)
        found: list[FindingEvent] = [_mismatch(found, world, run, agent_id) for found in self._silent.find(world)]
        found += _values(self._values.find(world), world, run, agent_id)
        found += self._problems(world, run, agent_id)
        self._all_over_ns = _over_since(world, self._all_over_ns)
        if self._all_over_ns is None or world.taken_ns - self._all_over_ns < _settling_ns(world):
            self._is_concluded = False
        elif not self._is_concluded:
            is_last = world.taken_ns - self._all_over_ns >= CONCLUDED_AFTER_NS
            found += self.conclude(world, run, agent_id, is_last)
            self._is_concluded = not self._silent.wanted
        return found + self.find_stragglers(world, run, agent_id)

    def conclude(
        self, world: WorldSnapshot, run: int, agent_id: int, is_last: bool = True, cause: Mismatch | None = None
    ) -> list[FindingEvent]:
        """Finish the comparisons; arguments as for `compare`. Operations that are not over may yet become a stall."""
        if self._is_left_to_another:
            return []
        if cause is not None:
            self._silent.mark_reported(cause)
        concluded = self._silent.conclude(world, is_last)
        found = _values(self._values.find(world, is_last=True), world, run, agent_id)
        found += self._problems(world, run, agent_id, is_last=True)
        return found + [
            _mismatch(found, world, run, agent_id)
            for found in concluded
            if ended_well(
                [view for view in world.in_order if _takes_part(view, found.operation_id)], found.operation_id
            )
        ]

    def explained(self, verdict: Verdict) -> None:
        """Note that the verdict on a stall says what would be a finding without one."""
        if verdict.sharing is not None:
            self._shared_groups.leave(verdict.sharing.example.group)

    def _problems(self, world: WorldSnapshot, run: int, agent_id: int, is_last: bool = False) -> list[FindingEvent]:
        found = [*self._failed_saves.find(world, is_last), *self._shared_groups.find(world, is_last)]
        return [ProblemFound(Incident(run, _name_of(one, world), agent_id), one, world) for one in found]

    def leave_to_another(self, local: WorldSnapshot) -> None:
        """Leave comparisons to another agent, which judges and sees all ranks, once those of this node are over.

        That agent may exit first when it is done; what is seen from here then is incomplete, and has been reported.
        """
        self._is_left_to_another = _over_since(local, None) is not None

    def find_stragglers(self, world: WorldSnapshot, run: int, agent_id: int) -> list[FindingEvent]:
        """Look for stragglers only, as while another agent compares the calls; arguments as for `compare`."""
        found: list[FindingEvent] = []
        for straggler in self._stragglers.find(world):
            if self._reported < MAX_STRAGGLERS:
                self._reported += 1
                name = f"straggler {straggler.channel.group} {straggler.rank} {world.taken_ns}"
                found.append(StragglerFound(Incident(run, name, agent_id), straggler, world))
        found += [StragglerGone(run, channel.group, rank) for channel, rank in self._stragglers.gone]
        if self._stragglers.lateness:
            found.append(ArrivalsCompared(run, tuple(self._stragglers.lateness)))
        return found


def _settling_ns(world: WorldSnapshot) -> int:
    """How long after the end of the ranks their final comparison is made.

    What a process wrote just before its end may not have been read when it is first seen to be gone, and agents of
    other nodes may start, and find each other, only after the end of a short job.
    """
    members = {rank for view in world.ranks.values() for group in view.groups.values() for rank in group.members}
    return ALL_READ_AFTER_NS if members <= world.ranks.keys() else CONCLUDED_AFTER_NS


def _over_since(world: WorldSnapshot, before_ns: int | None) -> int | None:
    """Since when all ranks of a snapshot are over; None when one is not."""
    if not all(view.is_over for view in world.ranks.values()):
        return None
    return world.taken_ns if before_ns is None else before_ns


def _takes_part(view: RankView, operation_id: OperationId) -> bool:
    """Whether a live rank takes part in an operation; from one that is over nothing more will come."""
    return not view.is_over and operation_id.channel in view.progress


def _mismatch(found: Mismatch, world: WorldSnapshot, run: int, agent_id: int) -> MismatchFound:
    # With the time, since a restarted agent may find it again.
    name = f"calls {incident_name(found.operation_id)} {world.taken_ns}"
    return MismatchFound(Incident(run, name, agent_id), found, world.group(found.operation_id.channel.group), world)


def _values(found: Iterable[NonFinite | Diverged], world: WorldSnapshot, run: int, agent_id: int) -> list[FindingEvent]:
    events: list[FindingEvent] = []
    for one in found:
        kind = "finite" if isinstance(one, NonFinite) else "equal"
        name = f"values {kind} {incident_name(one.operation_id)} {world.taken_ns}"
        events.append(ValuesFound(Incident(run, name, agent_id), one, world))
    return events


def _name_of(problem: SaveFailed | GroupShared, world: WorldSnapshot) -> str:
    if isinstance(problem, GroupShared):
        return f"group {problem.group.key} shared {world.taken_ns}"
    return f"checkpoint {problem.operation} {problem.checkpoint} {world.taken_ns}"
