"""Worlds without processes: ranks that run through programs of operations, and snapshots of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from otel_torchdist.job.requests.stacks import ThreadStack
from otel_torchdist.job.runs.deaths import Death
from otel_torchdist.processes.state import Stopped
from otel_torchdist.tape.layout import Blame, Flag, How, Phase, RecordKind, TapeState
from otel_torchdist.tape.names.model import CallSiteName, GroupName, RaisedName, SignatureName
from otel_torchdist.tape.records.checkpoints import NO_CHECKPOINTS, RankCheckpoints
from otel_torchdist.tape.records.operations import Operation
from otel_torchdist.tape.records.splits import Splits
from otel_torchdist.world.calls import MAX_RECENT, Arrival, Channel, GroupView, OperationId, OperationView, Progress
from otel_torchdist.world.model import RankView, Stacks, WorldSnapshot
from otel_torchdist.world.occupations import Engagement, Occupation
from otel_torchdist.world.part_sizes import part_sizes
from otel_torchdist.world.shared_groups import SharedGroup

RUN = 0xFEED
SECOND = 1_000_000_000
START_NS = 1_000 * SECOND
THRESHOLD_NS = 10 * SECOND
NO_FLAGS = Flag(0)
FIRST_NONCE = 0x1000
WALL_OFFSET_NS = 1_700_000_000 * SECOND


def group_of(*ranks: int, description: str = "", nth: int = 0, aligned: bool = True) -> GroupView:
    """A process group of these ranks."""
    name = GroupName(str(nth), description or f"group {ranks}", ranks, nth, "gloo", aligned)
    return GroupView(name.key, name, frozenset(ranks))


@dataclass
class FakeRank:
    """What one rank has done so far. Times are seconds since the beginning of the world."""

    rank: int
    open: dict[int, OperationView] = field(default_factory=dict[int, OperationView])
    progress: dict[Channel, Progress] = field(default_factory=dict[Channel, Progress])
    last: OperationView | None = None
    alive: bool = True
    state: TapeState = TapeState.RUNNING
    failure: str = ""
    raised: RaisedName | None = None
    gone_since_s: float | None = None
    heartbeat_age_s: float = 0.0
    losses: int = 0
    stopped: str = ""
    stopped_since_s: float = 0.0
    expects_until_s: float = -START_NS / SECOND
    tolerance_s: float = 0.0
    label: str = ""
    step: int = 0
    count: int = 0
    seen_alive_s: float = -START_NS / SECOND
    created_s: float = 0.0
    run_is_sure: bool = True
    death: Death | None = None
    host: str = "node-1"
    groups: dict[str, GroupView] = field(default_factory=dict[str, GroupView])
    checkpoints: RankCheckpoints = NO_CHECKPOINTS
    occupations: tuple[Occupation, ...] = ()
    stacks: Stacks | None = None
    shared_groups: tuple[SharedGroup, ...] = ()

    def enter(
        self,
        group: GroupView,
        at_s: float,
        name: str = "all_reduce",
        *,
        flags: Flag = NO_FLAGS,
        peer: int = -1,
        tag: int = 0,
        blocking: bool = True,
        kind: RecordKind = RecordKind.OPERATION,
        sequence: int | None = None,
        reduce_op: str = "sum",
        shape: tuple[int, ...] = (16,),
        dtype: str = "float32",
        thread: int = 100,
        message_bytes: int = 64,
        splits: Splits | None = None,
        phase: Phase = Phase.UNKNOWN,
        caller: str = "",
        line: int = 42,
        frames: tuple[CallSiteName, ...] = (),
    ) -> int:
        """Enter the next operation of a channel; returns its number."""
        channel = Channel(kind, group.key)
        if flags & Flag.POINT_TO_POINT:
            ends = (self.rank, peer) if name == "send" else (peer, self.rank)
            channel = Channel(kind, group.key, *ends, tag)
        before = self.progress.get(channel, Progress(aligned=group.name.aligned))
        place = before.entered + 1 if sequence is None else sequence
        signature = SignatureName(name, reduce_op, (shape,), (dtype,), "cpu", 1)
        threads = tuple(dict.fromkeys((*before.threads, thread)))
        callers = tuple(dict.fromkeys((*before.callers, caller))) if caller else before.callers
        self.progress[channel] = before._replace(entered=place, losses=self.losses, threads=threads, callers=callers)
        self.count += 1
        entered_ns = START_NS + round(at_s * SECOND)
        record = Operation(
            number=self.count,
            kind=kind,
            entered_ns=entered_ns,
            step=0,
            sequence=place,
            message_bytes=message_bytes,
            group=1,
            signature=1,
            call_site=1,
            label=0,
            peer=peer,
            tag=tag,
            thread=thread,
            flags=flags | (Flag.UNEVEN if splits is not None else NO_FLAGS),
            splits=splits,
            phase=phase,
            returned_ns=None if blocking else entered_ns + 1000,
        )
        parts = part_sizes(record, signature, len(group.members))
        recent = (*before.recent[1 - MAX_RECENT :], Arrival(place, signature, peer, parts, caller, frames, self.label))
        self.progress[channel] = self.progress[channel]._replace(recent=recent)
        site = frames[0] if frames else CallSiteName("train", "/home/user/train.py", line)
        since_ns = record.waiting_since_ns
        tolerance_ns = round(self.tolerance_s * SECOND)
        self.open[self.count] = OperationView(
            record, name, OperationId(channel, place), group, signature, site, self.label, "", since_ns, tolerance_ns,
            caller=caller,
        )  # fmt: skip
        return self.count

    def engage(self, engagement: Engagement, at_s: float, thread: int = 100) -> None:
        """A thread is in a backward pass, in an optimizer's step or in a wait for a future from now on."""
        self.occupations += (Occupation(engagement, thread, START_NS + round(at_s * SECOND)),)

    def write_stacks(self, at_s: float, *stacks: ThreadStack) -> None:
        """Answer a request for its stacks."""
        self.stacks = Stacks(START_NS + round(at_s * SECOND), stacks)

    def wait_for(self, number: int, at_s: float) -> None:
        """Begin to wait for an operation."""
        self._change(number, wait_entered_ns=START_NS + round(at_s * SECOND))

    def gives_up_waiting(self, number: int, at_s: float) -> None:
        """A wait with a timeout of its own raises; the operation goes on."""
        self._change(number, wait_returned_ns=START_NS + round(at_s * SECOND))

    def begin_on_device(self, number: int, at_s: float) -> None:
        """The rank's device reaches an operation."""
        self._change(number, started_ns=START_NS + round(at_s * SECOND), started_how=How.EVENT)

    def end(
        self, number: int, at_s: float, how: How = How.WAIT, failure: str = "", blame: Blame = Blame.UNKNOWN
    ) -> None:
        """End an operation."""
        self._change(number, completed_ns=START_NS + round(at_s * SECOND), how=how, blame=blame)
        view = self.open.pop(number)
        self.last = dataclasses.replace(view, failure=failure)
        channel, sequence = view.operation_id
        before = self.progress[channel]
        if failure:
            self.progress[channel] = before._replace(failed=sequence, failure=failure)
            return
        self.progress[channel] = before._replace(completed=max(before.completed, sequence))
        if how not in (How.ABANDONED, How.UNTRACKED):
            out_ns = max(before.seen_out_ns, START_NS + round(at_s * SECOND))
            self.progress[channel] = self.progress[channel]._replace(
                seen_out=max(before.seen_out, sequence), seen_out_ns=out_ns
            )

    def _change(self, number: int, **changes: object) -> None:
        view = self.open[number]
        record = msgspec.structs.replace(view.record, **changes)  # type: ignore[arg-type]
        since_ns = record.waiting_since_ns
        self.open[number] = dataclasses.replace(view, record=record, waiting_since_ns=since_ns)

    def die(self, at_s: float, state: TapeState = TapeState.RUNNING, failure: str = "") -> None:
        """Its process is gone from now on."""
        self.alive, self.state, self.failure, self.gone_since_s = False, state, failure, at_s

    def is_seen_to_die(
        self,
        at_s: float,
        status: int | None,
        state: TapeState = TapeState.RUNNING,
        failure: str = "",
        oom: str = "",
        with_others: bool = False,
    ) -> None:
        """Its process is gone from now on, and its agent saw it end with a wait status."""
        self.die(at_s, state, failure)
        self.death = Death(START_NS + round(at_s * SECOND), status=status, oom=oom, with_others=with_others)

    def view(self, now_s: float) -> RankView:
        """Its snapshot."""
        if self.alive:
            self.seen_alive_s = now_s
        ran_s = now_s if self.gone_since_s is None else min(now_s, self.gone_since_s)
        gone_ns = None if self.gone_since_s is None else START_NS + round(self.gone_since_s * SECOND)
        return RankView(
            rank=self.rank,
            nonce=FIRST_NONCE + self.rank,
            run=RUN,
            run_is_sure=self.run_is_sure,
            host=self.host,
            created_ns=START_NS + round(self.created_s * SECOND),
            alive=self.alive,
            state=self.state,
            failure=self.failure,
            raised=self.raised,
            gone_since_ns=gone_ns,
            heartbeat_ns=START_NS + round((ran_s - self.heartbeat_age_s) * SECOND),
            groups=dict(self.groups),
            step=self.step,
            open=tuple(self.open.values()),
            last=self.last,
            progress=dict(self.progress),
            losses=self.losses,
            forgotten=False,
            wall_offset_ns=WALL_OFFSET_NS,
            stacks=self.stacks,
            expects_until_ns=START_NS + round(self.expects_until_s * SECOND),
            stopped=Stopped(self.stopped, START_NS + round(self.stopped_since_s * SECOND)) if self.stopped else None,
            seen_alive_ns=START_NS + round(self.seen_alive_s * SECOND),
            death=self.death,
            checkpoints=self.checkpoints,
            occupations=self.occupations,
            shared_groups=self.shared_groups,
        )


class FakeWorld:
    """Ranks of one run on one node."""

    def __init__(self, size: int) -> None:
        self.ranks = [FakeRank(rank) for rank in range(size)]

    def snapshot(self, now_s: float, only: Iterable[int] | None = None) -> WorldSnapshot:
        """A snapshot of all ranks, or of those that are on this node."""
        chosen = range(len(self.ranks)) if only is None else only
        views = {rank: self.ranks[rank].view(now_s) for rank in chosen}
        return WorldSnapshot(RUN, START_NS + round(now_s * SECOND), views)

    def meet(self, group: GroupView, at_s: float, name: str = "all_reduce") -> None:
        """All members complete one operation."""
        for rank in sorted(group.members):
            number = self.ranks[rank].enter(group, at_s, name)
            self.ranks[rank].end(number, at_s + 0.001)


@dataclass(frozen=True)
class Meeting:
    """One operation of a schedule.

    Attributes:
        group: The ranks that take part.
        in_flight: Its ranks go on at once, and wait for it before their next blocking operation.
        seen: Whether that wait shows on the tape; waits in torch's C++ code do not.
    """

    group: GroupView
    in_flight: bool = False
    seen: bool = True


def play(world: FakeWorld, schedule: Sequence[Meeting], stops: dict[int, int]) -> float:
    """Let every rank run through its part of a schedule until none can go on.

    Args:
        world: All ranks at the beginning.
        schedule: Operations in an order that all ranks keep.
        stops: By rank, before how many of its operations it stops permanently.

    Returns:
        The time, in seconds, at which the last rank has stopped.
    """
    players = {rank: _Player(rank, schedule, stops.get(rank)) for rank in range(len(world.ranks))}
    now_s = 0.0
    moved = True
    while moved:
        moved = False
        for player in players.values():
            while player.turn(world, players, now_s):
                moved = True
                now_s += 0.01
    return now_s


class _Player:
    """One rank on its way through the schedule."""

    def __init__(self, rank: int, schedule: Sequence[Meeting], stop: int | None) -> None:
        self.rank = rank
        self.todo = [index for index, meeting in enumerate(schedule) if rank in meeting.group.members][:stop]
        self.schedule = schedule
        self.entered: dict[int, int] = {}
        self.ended: set[int] = set()
        self.next = 0
        self.blocked_in: int | None = None

    def turn(self, world: FakeWorld, players: dict[int, _Player], now_s: float) -> bool:
        """Take the next action; False when there is none to take now."""
        return self._end_one(world, players, now_s) or self._go_on(world, now_s)

    def _end_one(self, world: FakeWorld, players: dict[int, _Player], now_s: float) -> bool:
        for index, number in self.entered.items():
            if index in self.ended:
                continue
            members = self.schedule[index].group.members
            if all(index in players[member].entered for member in members):
                world.ranks[self.rank].end(number, now_s)
                self.ended.add(index)
                self.blocked_in = None if self.blocked_in == index else self.blocked_in
                return True
        return False

    def _go_on(self, world: FakeWorld, now_s: float) -> bool:
        if self.blocked_in is not None or self.next >= len(self.todo):
            return False
        index = self.todo[self.next]
        meeting = self.schedule[index]
        pending = [earlier for earlier in self.entered if earlier not in self.ended]
        if pending and not meeting.in_flight:
            self.blocked_in = pending[0]
            if self.schedule[pending[0]].seen:
                world.ranks[self.rank].wait_for(self.entered[pending[0]], now_s)
            return True
        number = world.ranks[self.rank].enter(meeting.group, now_s, blocking=not meeting.in_flight)
        self.entered[index] = number
        self.blocked_in = None if meeting.in_flight else index
        self.next += 1
        return True
