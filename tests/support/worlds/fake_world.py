"""Worlds without processes: ranks that write real tapes in this process, and snapshots of what follows from these.

What a rank calls goes through the package's own writer, reader and follower, so a snapshot shows what a job's tapes
would show. What no tape holds (a process's death, the kernel's state of it, stacks) is an attribute of the rank.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from otel_torchdist.model.calls import Channel, GroupView, OperationView, Progress
from otel_torchdist.model.kinds import Blame, Flag, How, Phase, RecordKind, TapeState
from otel_torchdist.model.names import (
    DEFAULT_DESCRIPTION,
    CallSiteName,
    GroupName,
    RaisedName,
    SignatureName,
)
from otel_torchdist.model.operations import Splits
from otel_torchdist.model.rank_state.lives import Death, Stopped
from otel_torchdist.model.rank_state.occupations import (
    NO_CHECKPOINTS,
    Occupation,
    OccupationKind,
    RankCheckpoints,
    SharedGroup,
)
from otel_torchdist.model.rank_state.stacks import Stacks, ThreadStack
from otel_torchdist.model.snapshot import RankView, WorldSnapshot
from otel_torchdist.tape.layout import Word, pack_failure
from otel_torchdist.tape.records.splits import pack_splits
from tests.support.worlds.world_tape import CAPACITY, WorldTape

RUN = 0xFEED
SECOND = 1_000_000_000
START_NS = 1_000 * SECOND
THRESHOLD_NS = 10 * SECOND
NO_FLAGS = Flag(0)
FIRST_NONCE = 0x1000
WALL_OFFSET_NS = 1_700_000_000 * SECOND
LETS_GO = Flag.ASYNC | Flag.POINT_TO_POINT | Flag.ON_DEVICE | Flag.COALESCED
"""With any of these a call returns before its operation ends."""


def group_of(*ranks: int, description: str = "", nth: int = 0, aligned: bool = True) -> GroupView:
    """A process group of these ranks."""
    label = description or f"group {ranks}"
    # torch counts groups: the default group is the first, and no two of a process have the same name.
    name = GroupName("0" if label == DEFAULT_DESCRIPTION else f"{label} {nth}", label, ranks, nth, "gloo", aligned)
    return GroupView(name.key, name, frozenset(ranks))


@dataclass
class FakeRank:
    """What one rank has done so far. Times are seconds since the beginning of the world."""

    rank: int
    alive: bool = True
    state: TapeState = TapeState.RUNNING
    failure: str = ""
    raised: RaisedName | None = None
    gone_since_s: float | None = None
    heartbeat_age_s: float = 0.0
    stopped: str = ""
    stopped_since_s: float = 0.0
    expects_until_s: float = -START_NS / SECOND
    tolerance_s: float = 0.0
    label: str = ""
    step: int = 0
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

    def __post_init__(self) -> None:
        """Begin a tape."""
        self._tape = WorldTape(self.rank)
        self._calls: dict[int, tuple[int, RecordKind, Channel]] = {}
        self._sequences: dict[Channel, int] = {}
        self._blocked: dict[int, int] = {}
        self._followed: RankView | None = None

    def enter(
        self,
        group: GroupView | None,
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
        line: int | None = 42,
        frames: tuple[CallSiteName, ...] = (),
    ) -> int:
        """Enter the next operation of a channel; returns its number.

        The name of a group that is None is lost; a call without a line comes from C++, and has no call site.
        """
        tape, names, entered_ns = self._tape, self._tape.writer.names, START_NS + round(at_s * SECOND)
        channel = self._channel(group, name, flags, peer, tag, kind)
        if not blocking and not flags & LETS_GO:
            flags |= Flag.ASYNC
        if splits is not None:
            flags |= Flag.UNEVEN
            sent, expected = ([part // splits.unit for part in parts] for parts in (splits.sent, splits.expected))
            tape.writer.write_splits(
                pack_splits(entered_ns, thread, sent or [splits.largest], splits.unit, splits.received, expected)
            )
            tape.wrote()
        assert thread not in self._blocked, (
            "a thread that is blocked calls nothing: readers would take it for abandoned"
        )
        if not frames and line is not None:
            frames = (CallSiteName("train", "/home/user/train.py", line),)
        signature = SignatureName(name, reduce_op, (shape,), (dtype,), "cpu", 1)
        number = tape.writer.begin(
            entered_ns=entered_ns,
            step=self.step,
            sequence=self._counted(channel, sequence),
            message_bytes=message_bytes,
            group=names.intern(group.name) if group is not None else 0,
            signature=names.intern(signature),
            call_site=tape.call_site(frames) if frames else 0,
            label=names.intern(self.label) if self.label else 0,
            peer=peer,
            tag=tag,
            thread=thread,
            kind=kind,
            flags=flags,
            phase=phase,
            caller=tape.caller(caller),
        )
        self._calls[number] = entered_ns, kind, channel
        if blocking and kind is RecordKind.OPERATION and not flags & LETS_GO:
            self._blocked[thread] = number
        if not blocking:
            tape.writer.mark(number, Word.RETURNED, 1000, How.CALL)
        self._written()
        return number

    def _channel(
        self, group: GroupView | None, name: str, flags: Flag, peer: int, tag: int, kind: RecordKind
    ) -> Channel:
        key = group.key if group is not None else ""
        if not flags & Flag.POINT_TO_POINT:
            return Channel(kind, key)
        return Channel(kind, key, *((self.rank, peer) if name == "send" else (peer, self.rank)), tag)

    def _counted(self, channel: Channel, sequence: int | None) -> int:
        """Count a call, as capture does."""
        self._sequences[channel] = sequence or self._sequences.get(channel, 0) + 1
        return self._sequences[channel]

    def _written(self) -> None:
        self._followed = None
        self._tape.wrote()

    def _mark(self, number: int, word: Word, at_s: float, how: How = How.CALL) -> None:
        self._tape.writer.mark(number, word, START_NS + round(at_s * SECOND) - self._calls[number][0], how)
        self._written()

    def engage(self, engagement: OccupationKind, at_s: float, thread: int = 100) -> None:
        """A thread is in a backward pass, in an optimizer's step or in a wait for a future from now on."""
        self.occupations += (Occupation(engagement, thread, START_NS + round(at_s * SECOND)),)

    def write_stacks(self, at_s: float, *stacks: ThreadStack) -> None:
        """Answer a request for its stacks."""
        self.stacks = Stacks(START_NS + round(at_s * SECOND), stacks)

    def wait_for(self, number: int, at_s: float) -> None:
        """Begin to wait for an operation."""
        self._mark(number, Word.WAIT_ENTERED, at_s)

    def gives_up_waiting(self, number: int, at_s: float) -> None:
        """A wait with a timeout of its own raises; the operation goes on."""
        self._mark(number, Word.WAIT_RETURNED, at_s)

    def begin_on_device(self, number: int, at_s: float) -> None:
        """The rank's device reaches an operation."""
        self._mark(number, Word.STARTED, at_s, How.EVENT)

    def end(
        self,
        number: int,
        at_s: float,
        how: How = How.WAIT,
        failure: str = "",
        blame: Blame = Blame.UNKNOWN,
        is_refused: bool = False,
    ) -> None:
        """End an operation; a failure comes from a wait for it, or from the call itself if it `is_refused`."""
        entered_ns, kind, channel = self._calls[number]
        self._blocked = {thread: one for thread, one in self._blocked.items() if one != number}
        if failure:
            how = How.FAILED
        if how is How.FAILED and not channel.is_point_to_point:
            if is_refused or kind is RecordKind.RENDEZVOUS:
                self._sequences[channel] -= 1
            else:
                self._mark(number, Word.RETURNED, at_s)
        word = pack_failure(self._tape.writer.names.intern(failure), blame) if failure else 0
        self._tape.writer.complete(number, entered_ns, START_NS + round(at_s * SECOND), how, word)
        self._written()

    def lose_records(self) -> None:
        """Have the reader come too late for what it has not read yet, and for more that is no operation."""
        for _ in range(2 * CAPACITY):
            self._tape.writer.step_ended(self.step, START_NS, 0)
        self._tape.poll()
        self._followed = None

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

    @property
    def open(self) -> dict[int, OperationView]:
        """Operations that have not ended, by their numbers."""
        return {operation.record.number: operation for operation in self.followed.open}

    @property
    def progress(self) -> Mapping[Channel, Progress]:
        """The progress in each channel."""
        return self.followed.progress

    @property
    def last(self) -> OperationView | None:
        """The operation that ended last."""
        return self.followed.last

    @property
    def followed(self) -> RankView:
        """The rank as its tape alone shows it."""
        if self._followed is None:
            self._tape.poll()
            self._tape.follower.is_last_check = not self.alive or self.state is not TapeState.RUNNING
            self._followed = self._tape.follower.view(START_NS)
        assert self._followed is not None
        return self._followed

    def view(self, now_s: float) -> RankView:
        """Its snapshot."""
        if self.alive:
            self.seen_alive_s = now_s
        ran_s = now_s if self.gone_since_s is None else min(now_s, self.gone_since_s)
        gone_ns = None if self.gone_since_s is None else START_NS + round(self.gone_since_s * SECOND)
        followed, tolerance_ns = self.followed, round(self.tolerance_s * SECOND)
        return dataclasses.replace(
            followed,
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
            groups={**followed.groups, **self.groups},
            step=self.step,
            open=tuple(dataclasses.replace(one, tolerance_ns=tolerance_ns) for one in followed.open)
            if tolerance_ns
            else followed.open,
            wall_offset_ns=WALL_OFFSET_NS,
            stacks=self.stacks,
            expects_until_ns=START_NS + round(self.expects_until_s * SECOND),
            stopped=Stopped(self.stopped, START_NS + round(self.stopped_since_s * SECOND)) if self.stopped else None,
            seen_alive_ns=START_NS + round(self.seen_alive_s * SECOND),
            death=self.death,
            checkpoints=self.checkpoints,
            occupations=self.occupations,
            shared_groups=(*followed.shared_groups, *self.shared_groups),
            world_size=0,
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
