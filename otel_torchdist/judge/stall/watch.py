"""Detects stalls on tapes: follows the tapes, and turns each pass over all tapes into events.

The detector is a pure state machine: snapshots in, events out. Each snapshot contains its time.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeAlias

from otel_torchdist.judge.stall.events import (
    Event,
    Follows,
    Leads,
    OngoingStall,
    PeerAgents,
    RunSeen,
    StacksOverdue,
    StacksWanted,
    Undecided,
)
from otel_torchdist.judge.stall.run_watch import RunWatch
from otel_torchdist.judge.verdict.rules import StallRules
from otel_torchdist.judge.world.assembly import worlds
from otel_torchdist.judge.world.following.follower import TapeFollower
from otel_torchdist.model.snapshot import WorldSnapshot
from otel_torchdist.node.machine.reader import RankSymptoms
from otel_torchdist.node.processes.death_watch import DeathWatch
from otel_torchdist.tape.reading.batch import Batch
from otel_torchdist.tape.reading.reader import TapeReader


class StallWatch:
    """Follows tapes, takes snapshots, asks ranks for their stacks, and returns events.

    If several processes read the same tapes, all may follow, so that each can take over, but only the elected process
    makes passes.

    Attributes:
        failed: By nonce, the exceptions of tapes that could not be evaluated in the last pass.
    """

    def __init__(
        self,
        rules: StallRules,
        peer_agents: PeerAgents | None = None,
        deaths: DeathWatch | None = None,
        machine: RankSymptoms | None = None,
    ) -> None:
        """Start without tapes.

        Args:
            rules: What counts as a stall.
            peer_agents: Other agents that see ranks of the same runs; None if there are none.
            deaths: Observes the ends of processes; stopped by its creator. None to detect ends by locks alone.
            machine: Symptoms of this machine, or None.
        """
        self._machine = machine
        self._rules = rules
        self._peer_agents = peer_agents
        self._deaths = deaths
        self._followers: dict[int, TapeFollower] = {}
        self._neighbors: set[int] = set()
        self._detector: Detector | None = None
        self.failed: dict[int, Exception] = {}

    def follow(self, reader: TapeReader, is_new: bool = False, is_neighbor: bool = False) -> None:
        """Follow a tape. Pass every batch from its first poll on to `observe`.

        Args:
            reader: The tape.
            is_new: Whether no agent may have read it before.
            is_neighbor: Whether another agent judges its run.
        """
        if is_neighbor:
            self._neighbors.add(reader.identity.nonce)
        if self._deaths is not None:
            self._deaths.follow(reader.path, reader.identity, reader.owner)
        self._followers[reader.identity.nonce] = TapeFollower(reader, self._deaths, is_new, self._machine)

    def forget(self, nonce: int) -> None:
        """Stop following the tape with this nonce."""
        self._followers.pop(nonce, None)
        self._neighbors.discard(nonce)
        if self._deaths is not None:
            self._deaths.forget(nonce)

    def channels_of(self, nonce: int) -> int:
        """Return the number of channels of a tape whose progress is known."""
        return self._followers[nonce].channels

    def observe(self, nonce: int, batch: Batch) -> None:
        """Process the batch of records from one poll of a followed tape."""
        self._followers[nonce].observe(batch)

    @property
    def next_check_s(self) -> float:
        """Seconds until the next pass. Poll every tape before it."""
        return self._detector.next_check_s if self._detector is not None else CHECK_S

    @property
    def is_urgent(self) -> bool:
        """Whether a verdict may be due soon."""
        return self._detector is not None and self._detector.is_urgent

    @property
    def is_concluding(self) -> bool:
        """Whether the ranks of this node have ended, but are still compared with other nodes; see `Detector`."""
        return self._detector is not None and self._detector.is_concluding

    @property
    def awaits_last_verdict(self) -> bool:
        """Whether a last verdict may still come; see `RunWatch`."""
        return self._detector is not None and self._detector.awaits_last_verdict

    def check(self, now_ns: int, is_last: bool = False, looked_ns: int = 0) -> list[Event]:
        """Evaluate all ranks.

        Args:
            now_ns: Monotonic time after the tapes were polled.
            is_last: Whether this is the last pass.
            looked_ns: See `WorldSnapshot`.

        Returns:
            The events to report, in this order.
        """
        if self._detector is None:
            self._detector = Detector(self._rules, now_ns, self._peer_agents)
        for follower in self._followers.values():
            follower.is_last_check = is_last
        events = self._detector.process(worlds(self._followers.values(), now_ns, looked_ns, self._neighbors), is_last)
        self.failed = {nonce: tape.failure for nonce, tape in self._followers.items() if tape.failure is not None}
        for world, error in self._detector.failed:
            self.failed |= {view.nonce: error for view in world.ranks.values() if view.nonce in self._followers}
        for event in events:
            if isinstance(event, StacksWanted | StacksOverdue):
                self._ask(event, now_ns)
                if self._peer_agents is not None:
                    self._peer_agents.request_stacks(event)
        for event in self._peer_agents.requested_stacks() if self._peer_agents is not None else ():
            self._ask(event, now_ns)
        return [event for event in events if not isinstance(event, StacksWanted | StacksOverdue)]

    def _ask(self, event: StacksWanted | StacksOverdue, now_ns: int) -> None:
        for nonce in event.nonces & self._followers.keys():
            if isinstance(event, StacksWanted):
                self._followers[nonce].ask_for_stacks(now_ns)
            else:
                self._followers[nonce].ask_by_signal()

    @property
    def ongoing(self) -> list[OngoingStall]:
        """The ongoing stalls."""
        return self._detector.ongoing if self._detector is not None else []

    @property
    def seen(self) -> list[RunSeen]:
        """Each run as of the last pass."""
        return self._detector.seen if self._detector is not None else []

    def stand_down(self) -> None:
        """Leave evaluation to another process, which also takes over the incidents and findings reported so far."""
        self._detector = None


CHECK_S: Final = 0.25
HURRIED_CHECK_S: Final = 0.05
"""Interval in seconds while ranks have been asked for their stacks."""

_Key: TypeAlias = tuple[str, bool, int]
"""The source of a snapshot, whether it is another user's, and its run."""


class Detector:
    """Watches every run in the snapshots it is given.

    Attributes:
        failed: Snapshots that could not be judged in the last pass, with their exceptions.
    """

    def __init__(self, rules: StallRules, watching_since_ns: int, peer_agents: PeerAgents | None = None) -> None:
        """Start watching.

        Args:
            rules: What counts as a stall.
            watching_since_ns: Monotonic time since which no other process has watched these runs.
            peer_agents: Other agents that see ranks of these runs; None if there are none.
        """
        self._rules = rules
        self._watching_since_ns = watching_since_ns
        self._processed_ns = watching_since_ns
        self._runs: dict[_Key, RunWatch] = {}
        self.failed: list[tuple[WorldSnapshot, Exception]] = []
        self._peer_agents = peer_agents
        self._undecided = False

    @property
    def next_check_s(self) -> float:
        """Seconds until the next pass at the latest."""
        is_hurried = self._undecided or any(run.is_hurried for run in self._runs.values())
        return HURRIED_CHECK_S if is_hurried else CHECK_S

    @property
    def is_urgent(self) -> bool:
        """Whether a verdict may be due soon."""
        return self._undecided or any(run.is_urgent for run in self._runs.values())

    @property
    def is_concluding(self) -> bool:
        """Whether the ranks of this node have ended, but are still compared with ranks of other nodes."""
        return any(run.is_concluding() for run in self._runs.values())

    @property
    def awaits_last_verdict(self) -> bool:
        """Whether a last verdict may still come; see `RunWatch`."""
        return any(run.awaits_last_verdict for run in self._runs.values())

    def process(self, worlds: Iterable[WorldSnapshot], is_last: bool = False) -> list[Event]:
        """Process the newest snapshot of every run.

        Args:
            worlds: The snapshots.
            is_last: Whether this is the last pass; comparisons are then finished.
        """
        events: list[Event] = []
        seen: set[_Key] = set()
        self._undecided = False
        self.failed = []
        present = list(worlds)
        for world in present:
            seen.add((world.source, world.is_foreign, world.run))
            try:
                events += self._process_run(world, is_last)
            except Exception as error:  # one run's failure must not affect the others
                self.failed.append((world, error))
            self._processed_ns = world.taken_ns
        for key in self._runs.keys() - seen:
            _, is_foreign, run = key
            events += self._runs.pop(key).lose_sight(present)
            if self._peer_agents is not None and not is_foreign:
                self._peer_agents.publish(run, None)
            # Earlier reports are forgotten. If the run's tapes come back, they are numbered as after a takeover.
            self._watching_since_ns = self._processed_ns
        return events

    def _process_run(self, world: WorldSnapshot, is_last: bool) -> list[Event]:
        key = world.source, world.is_foreign, world.run
        watch = self._runs.get(key)
        if watch is None:
            watch = self._runs[key] = RunWatch(self._rules, self._watching_since_ns)
        if self._peer_agents is None or world.is_foreign:
            watch.agent_id = min(world.ranks)  # differs on each node
            return [*watch.judge(world), *(watch.conclude(world) if is_last else ())]
        return self._process_with_peers(self._peer_agents, watch, world, is_last)

    @property
    def ongoing(self) -> list[OngoingStall]:
        """The reported ongoing stalls."""
        return [
            OngoingStall(watch.current, watch.ruling is not None, watch.own_nonces, watch.stands_still, watch.rescues)
            for watch in self._runs.values()
            if watch.current is not None
        ]

    @property
    def seen(self) -> list[RunSeen]:
        """Each run as of the last pass."""
        return [seen for watch in self._runs.values() if (seen := watch.seen) is not None]

    def _process_with_peers(
        self, peer_agents: PeerAgents, watch: RunWatch, world: WorldSnapshot, is_last: bool
    ) -> list[Event]:
        role = peer_agents.meet(world, watch.suspects_stall(world))
        match role:
            case Undecided():
                self._undecided = True
                return watch.conclude(world) if is_last else []
            case Follows():
                self._undecided |= role.is_hurried
                watch.agent_id, watch.judging_agent = min(world.ranks), role.judge
                watch.rescues_elsewhere, watch.off_elsewhere_wall_ns = role.rescues, role.off_wall_ns
                return watch.follow(world, role.ruling)
            case Leads():
                watch.agent_id, watch.judging_agent = role.agent_id, None
                watch.off_elsewhere_wall_ns = role.off_wall_ns
                events = watch.judge(role.world)
                events += watch.conclude(role.world) if is_last else []
                peer_agents.publish(world.run, watch.ruling)
                peer_agents.want_calls(world.run, watch.wanted_calls)
                return events
