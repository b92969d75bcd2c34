"""Watches all tapes of a job without changing anything: takes no lock, sends no request to a rank, writes nothing.

Also measures the pace of each rank, and the share of time that the other ranks lose to it.
"""

from __future__ import annotations

import dataclasses
import time
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from otel_torchdist.judge.stall.events import IncidentResolved, VerdictGiven
from otel_torchdist.judge.stall.findings.stragglers import ArrivalsCompared
from otel_torchdist.judge.stall.watch import Detector
from otel_torchdist.judge.verdict.rules import StallRules
from otel_torchdist.judge.world.assembly import worlds
from otel_torchdist.judge.world.following.follower import TapeFollower
from otel_torchdist.judge.world.threads import RecordedStacks
from otel_torchdist.model.kinds import Flag, RecordKind
from otel_torchdist.model.reports.finding import Finding
from otel_torchdist.model.snapshot import RankView, WorldSnapshot
from otel_torchdist.model.text import MemberRank
from otel_torchdist.node.job.runs.membership import RunParentage, helped_runs
from otel_torchdist.node.job.tapes import LocalTapes
from otel_torchdist.node.processes.endings import RecordedDeaths
from otel_torchdist.tape.reading.batch import Batch
from otel_torchdist.tape.reading.reader import TapeReader


@dataclass(frozen=True, slots=True)
class Observation:
    """The state of a job after one poll of its tapes.

    Attributes:
        rates: Pace of each rank.
        late: Share of the other ranks' time lost to a rank, by rank.
        helpers: Run ids of the helper processes that these ranks have started.
        events: New verdicts, resolved incidents, and findings other than stalls.
    """

    world: WorldSnapshot
    tapes: tuple[TapeReader, ...]
    rates: Mapping[int, Rates]
    late: Mapping[int, float]
    helpers: frozenset[int]
    events: tuple[VerdictGiven | IncidentResolved | Finding, ...]


@dataclass(frozen=True, slots=True)
class _Followed:
    """A tape and the state derived from it."""

    tape: TapeReader
    follower: TapeFollower
    meter: RateMeter
    stacks: RecordedStacks


class PassiveWatch:
    """Watches a run of a job directory: the given one, or the newest. Any number of watchers may run at once."""

    def __init__(self, directory: Path, rules: StallRules, run_id: int | None = None) -> None:
        """Start watching.

        Args:
            directory: The job directory.
            rules: Defines a stall.
            run_id: The run; None for the newest.
        """
        # The column `late` requires compared calls, even in jobs whose agents do not compare calls.
        self.rules = dataclasses.replace(rules, compares_calls=True)
        self._local = LocalTapes(directory)
        self._run_id = run_id
        self._followed: dict[int, _Followed] = {}
        self._deaths = RecordedDeaths()
        self._detector = Detector(self.rules, time.monotonic_ns())
        self._lateness = LatenessMeter(time.monotonic_ns())

    def observe(self) -> Observation | None:
        """Poll all tapes and check all ranks; returns None until a tape has a run id."""
        for tape in self._local.new(only_alive=False):
            identity = tape.identity
            meter, stacks = RateMeter(identity.monotonic_ns), RecordedStacks(tape.path, tape.owner)
            self._deaths.follow(identity.nonce, tape.path)
            follower = TapeFollower(tape, self._deaths)
            self._followed[identity.nonce] = _Followed(tape, follower, meter, stacks)
        for followed in self._followed.values():
            batch = followed.tape.poll()
            followed.follower.observe(batch)
            followed.meter.observe(batch, time.monotonic_ns())
        snapshots = self._run_and_helpers(time.monotonic_ns())
        if not snapshots:
            return None
        world = snapshots[0]
        # The detector's requests to ranks are not sent: the job's agent sends the same requests.
        events = self._detector.process(snapshots)
        for event in events:
            if isinstance(event, ArrivalsCompared) and event.run == world.run:
                self._lateness.observe(event, world.taken_ns)
        relevant = [event for event in events if isinstance(event, VerdictGiven | IncidentResolved | Finding)]
        ranks = {rank: self._followed[view.nonce] for rank, view in world.ranks.items()}
        rates = {rank: followed.meter.rates(world.taken_ns) for rank, followed in ranks.items()}
        late = self._lateness.shares(world.taken_ns)
        tapes = tuple(followed.tape for rank, followed in ranks.items() if not isinstance(rank, MemberRank))
        helpers = frozenset(helper.run for helper in snapshots[1:])
        return Observation(world, tapes, rates, late, helpers, tuple(relevant))

    def close(self) -> None:
        """Close all tapes."""
        for followed in self._followed.values():
            followed.tape.close()

    def _run_and_helpers(self, now_ns: int) -> list[WorldSnapshot]:
        """Return the watched run, then the runs of its helper processes; empty if there is none."""
        snapshots = worlds((followed.follower for followed in self._followed.values()), now_ns)
        helped = helped_runs([self._parentage(world) for world in snapshots])
        wanted = [index for index, world in enumerate(snapshots) if self._run_id in (None, world.run)]
        independent = [index for index in wanted if helped[index] not in wanted]
        newest = max(independent or wanted, key=lambda index: _recency(snapshots[index]), default=None)
        if newest is None:
            return []
        helpers = [index for index in range(len(snapshots)) if helped[index] == newest]
        return [self._with_all_stacks(snapshots[index], now_ns) for index in (newest, *helpers)]

    def _parentage(self, world: WorldSnapshot) -> RunParentage:
        return RunParentage.of(self._followed[view.nonce].tape.identity for view in world.ranks.values())

    def _with_all_stacks(self, world: WorldSnapshot, now_ns: int) -> WorldSnapshot:
        ranks = {rank: self._with_stacks(view, now_ns) for rank, view in world.ranks.items()}
        return dataclasses.replace(world, ranks=MappingProxyType(ranks))

    def _with_stacks(self, view: RankView, now_ns: int) -> RankView:
        """Add the stacks that a rank has written since its last record, as if they had been requested just now.

        A verdict then waits for stacks that are still to be written, but not for newer ones.
        """
        with_stacks = self._followed[view.nonce].stacks.shown_in(view)
        if with_stacks.stacks is None:
            return with_stacks
        return dataclasses.replace(with_stacks, stacks=dataclasses.replace(with_stacks.stacks, asked_ns=now_ns))


def _recency(world: WorldSnapshot) -> tuple[bool, int]:
    """Return a sort key: runs with a live rank come last, then runs by the start of their last rank."""
    views: list[RankView] = list(world.ranks.values())
    return any(view.alive for view in views), max((view.created_ns for view in views), default=0)


LATENESS_WINDOW_NS: Final = 30_000_000_000


class LatenessMeter:
    """Sums the lateness of ranks over the last 30 seconds."""

    def __init__(self, begun_ns: int) -> None:
        """Start the window at `begun_ns`, by the monotonic clock."""
        self._begun_ns = begun_ns
        self._compared: deque[tuple[int, Counter[int]]] = deque()

    def observe(self, event: ArrivalsCompared, now_ns: int) -> None:
        """Add a comparison."""
        late_ns: Counter[int] = Counter()
        for group in event.lateness:
            late_ns.update(group.late_ns)
        self._compared.append((now_ns, late_ns))

    def shares(self, now_ns: int) -> Mapping[int, float]:
        """Return the share of time, from 0 to 1, that the other ranks waited for one rank alone, by rank."""
        while self._compared and self._compared[0][0] < now_ns - LATENESS_WINDOW_NS:
            self._compared.popleft()
        total: Counter[int] = Counter()
        for _, late_ns in self._compared:
            total.update(late_ns)
        span_ns = max(min(LATENESS_WINDOW_NS, now_ns - self._begun_ns), 1)
        return {rank: min(late_ns / span_ns, 1.0) for rank, late_ns in total.items()}


RATES_WINDOW_NS: Final = 5_000_000_000
_POINT_TO_POINT: Final = int(Flag.POINT_TO_POINT)


@dataclass(frozen=True, slots=True)
class Rates:
    """Counts per second.

    Attributes:
        steps: Steps ended.
        collectives: Collectives entered.
    """

    steps: float
    collectives: float


class RateMeter:
    """Counts steps and collectives of one rank over a sliding window."""

    def __init__(self, begun_ns: int) -> None:
        """Start counting at the beginning of the tape, in nanoseconds of the monotonic clock."""
        self._begun_ns = begun_ns
        self._counts: deque[tuple[int, int, int]] = deque()

    def observe(self, batch: Batch, now_ns: int) -> None:
        """Add the records of a poll; records older than the window are not counted."""
        oldest_ns = now_ns - RATES_WINDOW_NS
        steps = sum(mark.ended_ns > oldest_ns for mark in batch.steps)
        collectives = sum(
            operation.entered_ns > oldest_ns
            and operation.kind is RecordKind.OPERATION
            and not int(operation.flags) & _POINT_TO_POINT
            for operation in batch.entered
        )
        self._counts.append((now_ns, steps, collectives))
        while self._counts[0][0] < oldest_ns:
            self._counts.popleft()

    def rates(self, now_ns: int) -> Rates:
        """Return the rates over the window, or since the beginning of a shorter tape."""
        seconds = max(min(RATES_WINDOW_NS, now_ns - self._begun_ns), 1) / 1e9
        steps = sum(count[1] for count in self._counts)
        return Rates(steps / seconds, sum(count[2] for count in self._counts) / seconds)
