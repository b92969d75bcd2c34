"""Simulated jobs of up to 4,096 ranks on a mesh, each with a fault somewhere, and the expected verdict.

All ranks run through the same phases; in each of them every rank takes part in one collective, of its group along one
axis of the mesh or of the whole world. A rank that cannot go on stays in the phase, and so do all that need it later.
In some jobs a rank has made a different call before, which all have completed.
"""

from __future__ import annotations

import enum
import itertools
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from otel_torchdist.judge.stall.events import Event, StacksWanted, VerdictGiven
from otel_torchdist.judge.stall.watch import Detector
from otel_torchdist.judge.verdict.rules import StallRules
from otel_torchdist.judge.verdict.verdict import Verdict
from otel_torchdist.model.calls import Arrival, Channel, GroupView, OperationId, OperationView, Progress
from otel_torchdist.model.kinds import Flag, RecordKind, TapeState
from otel_torchdist.model.names import GroupName, SignatureName
from otel_torchdist.model.operations import Operation
from otel_torchdist.model.rank_state.lives import Stopped
from otel_torchdist.model.reports.verdict_kinds import VerdictKind
from otel_torchdist.model.snapshot import RankView, WorldSnapshot
from tests.support.worlds.fake_world import RUN, SECOND, START_NS

THRESHOLD_S = 10.0
MAX_RANKS = 4_096
RANKS_OF_A_NODE = 8
SUM = SignatureName("all_reduce", "sum", ((1024,),), ("float32",), "cuda", 1)
"""The call of every rank that is right."""

ODD = replace(SUM, dtypes=("int32",))
"""A wrong call that goes unpunished."""
OFTEN = 0.3
MAIN_THREAD = 100


class Fault(enum.Enum):
    """What is wrong; the value is the expected verdict, if any."""

    NONE = None
    LATE = VerdictKind.ABSENT
    KILLED = VerdictKind.DEAD
    FROZEN = VerdictKind.FROZEN
    OTHER_DTYPE = (VerdictKind.MISMATCHED, "dtype")
    OTHER_REDUCE_OP = (VerdictKind.MISMATCHED, "reduce op")
    OTHER_OPERATION = (VerdictKind.MISMATCHED, "operation")
    CIRCLE = VerdictKind.CIRCULAR
    NODE_LOST = VerdictKind.UNREACHABLE
    SILENT = VerdictKind.UNKNOWN
    STUCK = VerdictKind.STUCK
    TRANSPORT = VerdictKind.TRANSPORT

    @property
    def verdict(self) -> VerdictKind | None:
        """The expected verdict."""
        return self.value[0] if isinstance(self.value, tuple) else self.value


@dataclass
class World:
    """A job at the moment at which no rank can go on.

    Attributes:
        size: Ranks.
        fault: What is wrong.
        guilty: The ranks that must be named.
        views: All ranks that are seen.
        unreachable: Ranks of a node whose agent does not answer.
    """

    size: int
    fault: Fault
    guilty: tuple[int, ...]
    views: dict[int, RankView] = field(default_factory=dict[int, RankView])
    unreachable: dict[int, str] = field(default_factory=dict[int, str])

    def at(self, now_s: float) -> WorldSnapshot:
        """A snapshot of the job."""
        now_ns = START_NS + round(now_s * SECOND)
        return WorldSnapshot(RUN, now_ns, self.views, self.unreachable)


def random_world(seed: int) -> World:
    """A job of any size, with any fault at any place."""
    chance = random.Random(seed)
    pipeline, tensor = chance.choice((1, 1, 2, 4)), chance.choice((1, 2, 4, 8))
    most = MAX_RANKS // (pipeline * tensor)
    data = max(round(2 ** chance.uniform(0, most.bit_length() - 1)), 2 if pipeline * tensor == 1 else 1)
    return _Maker(chance, (pipeline, data, tensor), chance.choice(list(Fault))).make()


class _Maker:
    """Lets a job run until it cannot go on."""

    def __init__(self, chance: random.Random, mesh: tuple[int, ...], fault: Fault) -> None:
        self._chance = chance
        self._size = mesh[0] * mesh[1] * mesh[2]
        self._fault = fault
        if fault in (Fault.OTHER_DTYPE, Fault.OTHER_REDUCE_OP, Fault.OTHER_OPERATION) and max(mesh) < 3:
            self._fault = Fault.LATE  # with two ranks there is no minority
        self._axes = [list(_groups_along(mesh, axis)) for axis in range(3) if mesh[axis] > 1]
        self._axes.append([_group(range(self._size), "world")])
        self._entered: list[dict[Channel, int]] = [{} for _ in range(self._size)]
        self._calls: dict[tuple[int, Channel], SignatureName] = {}
        self._stuck: dict[int, tuple[GroupView, int, float]] = {}
        self._done: list[dict[Channel, int]] = [{} for _ in range(self._size)]
        self._now_s = 0.0
        self._was_odd = chance.randrange(self._size) if chance.random() < OFTEN else -1

    def make(self) -> World:
        """Run the job."""
        for _ in range(self._chance.randrange(3)):
            for axis in self._axes:
                self._phase(axis, set())
        world = World(self._size, self._fault, ())
        if self._fault is not Fault.NONE:
            axis = self._chance.choice(self._axes)
            world.guilty = self._go_wrong(axis)
            for later in itertools.islice(itertools.cycle(self._axes), 2 * len(self._axes)):
                self._phase(later, set(world.guilty) if self._stays_away else set())
        self._show(world)
        return world

    @property
    def _stays_away(self) -> bool:
        return self._fault in (Fault.LATE, Fault.KILLED, Fault.FROZEN, Fault.SILENT)

    def _go_wrong(self, axis: list[GroupView]) -> tuple[int, ...]:
        """Run the phase with the fault; returns the ranks to name."""
        if self._fault is Fault.CIRCLE:
            return self._wait_in_a_circle()
        rank = self._chance.randrange(self._size)
        if self._fault is Fault.NODE_LOST:
            return self._lose_node(axis, rank)
        if self._stays_away:
            self._phase(axis, {rank})
            return (rank,)
        if self._fault is Fault.TRANSPORT:
            self._phase(axis, set(), stuck_group=self._group_of(axis, rank))
            return ()
        if self._fault is Fault.STUCK:
            self._phase(axis, set(), stuck_rank=rank)
            return (rank,)
        return self._disagree(rank)

    def _disagree(self, rank: int) -> tuple[int, ...]:
        axis = max(self._axes, key=lambda groups: len(groups[0].members))
        group = self._group_of(axis, rank)
        odd = {
            Fault.OTHER_DTYPE: replace(SUM, dtypes=("bfloat16",)),
            Fault.OTHER_REDUCE_OP: replace(SUM, reduce_op="max"),
            Fault.OTHER_OPERATION: replace(SUM, operation="all_gather", reduce_op=""),
        }[self._fault]
        self._calls[rank, Channel(RecordKind.OPERATION, group.key)] = odd
        self._phase(axis, set(), stuck_group=group)
        return (rank,)

    def _lose_node(self, axis: list[GroupView], rank: int) -> tuple[int, ...]:
        """Lose a node, of which nothing is seen any more; a job on one node has a late rank instead."""
        if self._size <= RANKS_OF_A_NODE:
            self._fault = Fault.LATE
            self._phase(axis, {rank})
            return (rank,)
        first = rank - rank % RANKS_OF_A_NODE
        lost = tuple(range(first, min(first + RANKS_OF_A_NODE, self._size)))
        self._phase([_group(range(self._size), "world")], set(lost))
        return lost

    def _wait_in_a_circle(self) -> tuple[int, ...]:
        count = min(self._chance.randrange(2, 6), self._size)
        ranks = self._chance.sample(range(self._size), count)
        for place, rank in enumerate(ranks):
            # With two ranks both share two groups, so they differ in their creation count.
            pair = _group(sorted((rank, ranks[(place + 1) % count])), f"pair {place}", nth=7 + place)
            self._enter(rank, pair)
        return tuple(sorted(ranks))

    def _phase(
        self, groups: list[GroupView], away: set[int], stuck_group: GroupView | None = None, stuck_rank: int = -1
    ) -> None:
        """Every rank that can enters its group; the ranks of complete groups go on."""
        self._now_s += 0.001
        for group in groups:
            free = [rank for rank in group.members if rank not in self._stuck and rank not in away]
            for rank in free:
                self._enter(rank, group)
            if len(free) == len(group.members) and (stuck_group is None or group.key != stuck_group.key):
                for rank in free:
                    if rank != stuck_rank:
                        self._leave(rank)

    def _enter(self, rank: int, group: GroupView) -> None:
        channel = Channel(RecordKind.OPERATION, group.key)
        sequence = self._entered[rank].get(channel, 0) + 1
        self._entered[rank][channel] = sequence
        self._stuck[rank] = group, sequence, self._now_s

    def _leave(self, rank: int) -> None:
        group, sequence, _ = self._stuck.pop(rank)
        self._done[rank][Channel(RecordKind.OPERATION, group.key)] = sequence

    def _group_of(self, axis: list[GroupView], rank: int) -> GroupView:
        return next(group for group in axis if rank in group.members)

    # --- what is seen ---------------------------------------------------------------------------------------------

    def _show(self, world: World) -> None:
        world.fault = self._fault
        hidden = set(world.guilty) if self._fault in (Fault.SILENT, Fault.NODE_LOST) else set()
        world.views = {rank: self._view(rank, rank in world.guilty) for rank in range(self._size) if rank not in hidden}
        if self._fault is Fault.NODE_LOST:
            world.unreachable = dict.fromkeys(world.guilty, "node-7")
        if self._fault is Fault.SILENT:
            world.guilty = ()

    def _view(self, rank: int, is_guilty: bool) -> RankView:
        is_dead = is_guilty and self._fault is Fault.KILLED
        died_ns = START_NS + round(self._now_s * SECOND) if is_dead else None
        return RankView(
            rank=rank,
            nonce=0x1000 + rank,
            run=RUN,
            run_is_sure=True,
            host=f"node-{rank // RANKS_OF_A_NODE}",
            created_ns=START_NS,
            alive=not is_dead,
            state=TapeState.RUNNING,
            failure="",
            gone_since_ns=died_ns,
            heartbeat_ns=START_NS + round((self._now_s + 3_600) * SECOND),
            step=0,
            open=self._open(rank),
            last=None,
            progress=self._progress(rank),
            losses=0,
            forgotten=False,
            wall_offset_ns=0,
            stacks=None,
            stopped=Stopped("T", START_NS) if is_guilty and self._fault is Fault.FROZEN else None,
            seen_alive_ns=START_NS + round(self._now_s * SECOND),
        )

    def _progress(self, rank: int) -> Mapping[Channel, Progress]:
        return {
            channel: Progress(
                entered=sequence,
                completed=self._done[rank].get(channel, 0),
                end_observed=self._done[rank].get(channel, 0),
                end_observed_ns=START_NS,
                recent=(
                    *([Arrival(sequence - 1, ODD if rank == self._was_odd else SUM, -1)] if sequence > 1 else []),
                    Arrival(sequence, self._calls.get((rank, channel), SUM), -1),
                ),
                threads=(MAIN_THREAD,),
            )
            for channel, sequence in self._entered[rank].items()
        }

    def _open(self, rank: int) -> tuple[OperationView, ...]:
        if rank not in self._stuck:
            return ()
        group, sequence, since_s = self._stuck[rank]
        channel = Channel(RecordKind.OPERATION, group.key)
        signature = self._calls.get((rank, channel), SUM)
        since_ns = START_NS + round(since_s * SECOND)
        record = Operation(
            number=sequence + 1,
            kind=RecordKind.OPERATION,
            entered_ns=since_ns,
            step=0,
            sequence=sequence,
            message_bytes=4096,
            group=1,
            signature=1,
            call_site=0,
            label=0,
            peer=-1,
            tag=0,
            thread=MAIN_THREAD,
            flags=Flag(0),
        )
        site = OperationId(channel, sequence)
        return (OperationView(record, signature.operation, site, group, signature, None, "", "", since_ns),)


def _groups_along(mesh: tuple[int, ...], axis: int) -> Iterable[GroupView]:
    others = [range(size) if place != axis else range(1) for place, size in enumerate(mesh)]
    for corner in itertools.product(*others):
        line = [tuple(one if place == axis else at for place, at in enumerate(corner)) for one in range(mesh[axis])]
        yield _group([(at[0] * mesh[1] + at[1]) * mesh[2] + at[2] for at in line], ("pp", "dp", "tp")[axis])


def _group(ranks: Iterable[int], description: str, nth: int = 0) -> GroupView:
    members = tuple(ranks)
    # The whole world may also be one line of the mesh; it is another group nevertheless.
    name = GroupName(description, description, members, nth + (description == "world"), "nccl", True)
    return GroupView(name.key, name, frozenset(members))


def first_verdict(world: World) -> Verdict | None:
    """The first verdict of a detector on the world, within two seconds after the threshold."""
    detector = Detector(StallRules(round(THRESHOLD_S * SECOND)), START_NS)
    for now_s in (THRESHOLD_S - 1, THRESHOLD_S + 0.25, THRESHOLD_S + 1.9):
        for event in _events(detector, world, now_s):
            if isinstance(event, VerdictGiven):
                return event.verdict
    return None


def _events(detector: Detector, world: World, now_s: float) -> list[Event]:
    """No rank answers when asked for its stacks: that must not matter."""
    return [event for event in detector.process([world.at(now_s)]) if not isinstance(event, StacksWanted)]


@dataclass
class Score:
    """How many verdicts were right.

    Attributes:
        worlds: Worlds that were judged.
        faults: Worlds with a fault.
        given: Worlds with a verdict.
        right: Worlds with the right verdict: its kind, and exactly the guilty ranks.
        ranks: The most ranks that a world had.
        wrong: Seeds of the worlds with a wrong verdict, and that verdict.
    """

    worlds: int = 0
    faults: int = 0
    given: int = 0
    right: int = 0
    ranks: int = 0
    wrong: list[str] = field(default_factory=list[str])

    @property
    def precision(self) -> float:
        """The share of right verdicts among those given."""
        return self.right / self.given if self.given else 1.0

    @property
    def recall(self) -> float:
        """The share of faults that got the right verdict."""
        return self.right / self.faults if self.faults else 1.0

    def judge(self, seed: int, world: World | None = None) -> None:
        """Judge one more world: the given one, or that of the seed."""
        world = world or random_world(seed)
        verdict = first_verdict(world)
        self.worlds += 1
        self.faults += world.fault is not Fault.NONE
        self.given += verdict is not None
        self.ranks = max(self.ranks, world.size)
        said = (verdict.kind, verdict.ranks) if verdict is not None else (None, ())
        if said != (world.fault.verdict, world.guilty):
            self.wrong.append(f"seed {seed}: {world.size} ranks, {world.fault.name} of {world.guilty}, said {said}")
        else:
            self.right += verdict is not None
