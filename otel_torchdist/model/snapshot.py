"""The snapshot that verdicts are based on: what the ranks of one run were doing at one moment. Frozen data only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from otel_torchdist.model.calls import Channel, GroupView, OperationId, OperationView, Progress, TimedWindow, Window
from otel_torchdist.model.kinds import TapeState
from otel_torchdist.model.lives import Death, Lifetime, RankLife, Stopped
from otel_torchdist.model.names import GIVEN_UP, RaisedName
from otel_torchdist.model.occupations import (
    NO_CHECKPOINTS,
    NO_PACE,
    CallPace,
    ChildWait,
    Occupation,
    RankCheckpoints,
    SharedGroup,
)
from otel_torchdist.model.rank_values import NO_VALUES, RankValues
from otel_torchdist.model.remote_calls import WorkerView
from otel_torchdist.model.rescue import NO_RESCUE, Rescue, RescueState
from otel_torchdist.model.stacks import Stacks
from otel_torchdist.model.symptoms import Symptom


@dataclass(frozen=True, slots=True)
class RankView:
    """One rank.

    Attributes:
        rank: Global rank.
        nonce: Nonce of its tape.
        run: 128-bit id of its run, 0 until known.
        run_is_sure: False while that id may still be the one of an earlier attempt.
        host: Host name.
        created_ns: When its tape was created.
        alive: Whether its process exists.
        state: The state that it last recorded.
        failure: Type of the exception that ended it, or ''.
        gone_since_ns: When it was first seen to be gone; None while it is alive.
        heartbeat_ns: When its Python threads last ran, as far as its heartbeat shows.
        step: Its current step.
        open: Operations that have not ended, oldest first.
        last: The operation that ended last.
        progress: How far it has advanced in each channel.
        losses: How often records were lost before they were read.
        forgotten: Whether channels were dropped for lack of room.
        wall_offset_ns: Wall clock minus monotonic clock.
        stacks: Result of the newest request for its stacks; None if it was never asked.
        stopped: How the kernel keeps its process from running; None if it does not, or if that is not known.
        expects_until_ns: Until when it expects to wait, or others to wait for it; 0 if it does not.
        windows: What it has called recently in each group; see `CallLog`.
        arrivals: When it arrived recently at the calls of each group; see `ArrivalLog`.
        groups: The groups that it has used, by their key.
        seen_alive_ns: When it was last seen to be alive; 0 for never.
        is_new: Whether no agent has read its tape before this one.
        ran_ns: When the kernel last showed that its process ran although its heartbeat had stopped; 0 for never.
        is_remote: Whether another agent reads its tape.
        death: The end of its process as observed by its agent; None if none was observed.
        child: The child process that it waits for, if its stack shows that it waits for one; None if not.
        values: What the values in its tensors were like.
        rescue: How far its rescue in a stall has come.
        asked_signal: The signal that has asked its process to end, if such signals are recorded; 0 for none.
        asked_ns: When it came.
        checkpoints: The checkpoints that it is in, and those that it could not save.
        shared_groups: Groups in whose collectives two of its threads were at the same time.
        fell_silent: Whether it counts as gone only because others went on to show signs of life. Its process may have
            died, or may have been stopped; or native code did not release its GIL.
        symptoms: What its machine has shown lately that may explain a stall.
        worker: What it is and does as a worker of RPC; None if it is none.
        world: The world that its rank is of, if its program has made that by hand; '' for that of the default group.
        world_size: How many ranks that has; 0 if it is not known.
        places: By the key of each group of another world: this process's rank there.
        pace: How often it calls operations.
        raised: The exception that has ended it, and where it was raised; None if that is not known.
        twins: Process ids of all live processes that claim to be this rank, ascending; empty if it is the only one.
        other_sizes: By rank, the world size of processes that meet others at its address, in worlds of another size.
        occupations: What its threads are in that may wait for operations without a record of it.
        clock_error_ns: By how much its times may be wrong because another agent read them, on a clock of its own.
        data_wait_ns: For how long its training thread has waited for data so far.
    """

    rank: int
    nonce: int
    run: int
    run_is_sure: bool
    host: str
    created_ns: int
    alive: bool
    state: TapeState
    failure: str
    gone_since_ns: int | None
    heartbeat_ns: int
    step: int
    open: tuple[OperationView, ...]
    last: OperationView | None
    progress: Mapping[Channel, Progress]
    losses: int
    forgotten: bool
    wall_offset_ns: int
    stacks: Stacks | None
    stopped: Stopped | None = None
    expects_until_ns: int = 0
    windows: Mapping[Channel, tuple[Window, ...]] = field(default_factory=dict[Channel, tuple[Window, ...]])
    arrivals: Mapping[Channel, tuple[TimedWindow, ...]] = field(default_factory=dict[Channel, tuple[TimedWindow, ...]])
    groups: Mapping[str, GroupView] = field(default_factory=dict[str, GroupView])
    seen_alive_ns: int = 0
    is_new: bool = False
    ran_ns: int = 0
    is_remote: bool = False
    death: Death | None = None
    child: ChildWait | None = None
    values: RankValues = NO_VALUES
    rescue: Rescue = NO_RESCUE
    asked_signal: int = 0
    asked_ns: int = 0
    fell_silent: bool = False
    symptoms: tuple[Symptom, ...] = ()
    checkpoints: RankCheckpoints = NO_CHECKPOINTS
    shared_groups: tuple[SharedGroup, ...] = ()
    worker: WorkerView | None = None
    world: str = ""
    world_size: int = 0
    places: Mapping[str, int] = field(default_factory=dict[str, int])
    other_sizes: Mapping[int, int] = field(default_factory=dict[int, int])
    data_wait_ns: int = 0
    occupations: tuple[Occupation, ...] = ()
    clock_error_ns: int = 0
    pace: CallPace = NO_PACE
    twins: tuple[int, ...] = ()
    raised: RaisedName | None = None

    @property
    def is_dead(self) -> bool:
        """Whether it is gone and did not end cleanly."""
        if self.alive or self.has_given_up:
            return False
        if self.state is TapeState.FINISHED:
            return self.exited_in_error or self.crashed_at_exit
        return not self.has_left

    @property
    def exit_code(self) -> int | None:
        """The code with which its process exited; None if it did not exit, or if that is not known."""
        return self.death.exit_code if self.death is not None else None

    @property
    def exited_in_error(self) -> bool:
        """Whether its program ended by `sys.exit` with an error code, as programs do that handle all exceptions."""
        return self.state is TapeState.FINISHED and self.death is not None and self.death.exited_in_error

    @property
    def crashed_at_exit(self) -> bool:
        """Whether it crashed after the end of its script: a launcher then ends the others."""
        return self.state is TapeState.FINISHED and self.death is not None and self.death.crashed_at_exit

    @property
    def has_given_up(self) -> bool:
        """Whether its backend gave up waiting for the others; how its process ends then is no evidence against it."""
        return self.failure == GIVEN_UP and self.state is TapeState.RUNNING

    @property
    def has_left(self) -> bool:
        """Whether its process exited with code 0, outside of any operation: by `os._exit`, which leaves no record."""
        return self.exit_code == 0 and not self.alive and self.state is TapeState.RUNNING and not self.open

    @property
    def end(self) -> Death | None:
        """Its death, with the signal before it."""
        if self.death is None or not self.asked_signal:
            return self.death
        return replace(self.death, asked=self.asked_signal, asked_ns=self.asked_ns)

    @property
    def rescued(self) -> Rescue:
        """How far its rescue has come: what is saved stays saved, and of a dead rank nothing more comes."""
        is_over = not self.alive and not self.rescue.state.is_final
        return Rescue(RescueState.DEAD, self.rescue.step) if is_over else self.rescue

    @property
    def life(self) -> Lifetime:
        """When it lived, as far as a heartbeat, a pass that saw it, or its recorded death shows."""
        died_ns = self.death.at_ns if self.death is not None else 0
        seen_ns = max(self.heartbeat_ns, self.seen_alive_ns, died_ns)
        return Lifetime(self.created_ns, seen_ns, self.alive, self.run_is_sure)

    @property
    def is_over(self) -> bool:
        """Whether it makes no more calls: its process is gone, or has recorded that it finished or failed."""
        return not self.alive or self.state is not TapeState.RUNNING

    def at(self, operation_id: OperationId) -> OperationView | None:
        """The rank's open operation with this id, if any."""
        return next((operation for operation in self.open if operation.operation_id == operation_id), None)

    def uses(self, thread: int, channel: Channel) -> bool:
        """Whether a thread of this rank is one of those that enter a channel, as far as that is known."""
        progress = self.progress.get(channel)
        return progress is None or not progress.threads or thread in progress.threads

    def waits_in(self, operation: OperationView) -> bool:
        """Whether an open operation of this rank is evidence that it waits.

        An operation that blocks no thread means nothing once its rank has recorded that it is done.
        """
        if not (self.alive or self.has_given_up) or operation.waiting_since_ns is None:
            return False
        return self.state is TapeState.RUNNING or operation.record.is_blocking


@dataclass(frozen=True, slots=True)
class WorldSnapshot:
    """The ranks of one run at one moment, as far as they are visible.

    Attributes:
        run: 128-bit id; 0 for ranks that do not know theirs yet.
        taken_ns: Monotonic time.
        ranks: By their global rank.
        unreachable: Ranks whose agent does not answer, with the host that it was on.
        source: What distinguishes it from other snapshots with the same id: another user, who may have forged the id,
            or the directory of ranks without one. '' for a run of this process's own user.
        is_foreign: Whether the ranks belong to another user.
        looked_ns: When reading their tapes began, which takes time on a busy machine: what they did later may be
            missing. 0 if that is not known.
    """

    run: int
    taken_ns: int
    ranks: Mapping[int, RankView]
    unreachable: Mapping[int, str] = field(default_factory=dict[int, str])
    source: str = ""
    is_foreign: bool = False
    looked_ns: int = 0

    @property
    def rescues(self) -> dict[int, Rescue]:
        """How far the rescue of each rank has come; empty if none has begun."""
        was_begun = any(view.rescue.state is not RescueState.NONE for view in self.ranks.values())
        return {rank: view.rescued for rank, view in self.ranks.items()} if was_begun else {}

    @property
    def in_order(self) -> list[RankView]:
        """The ranks, ascending."""
        return [self.ranks[rank] for rank in sorted(self.ranks)]

    def group(self, key: str) -> GroupView | None:
        """A group by its key, as the first of its members sees it; None if it is not known."""
        return next((view.groups[key] for view in self.in_order if key in view.groups), None)


def life_in(view: RankView) -> RankLife:
    """Whether a rank in a snapshot is running, finished, failed or dead."""
    if view.state is TapeState.FAILED or view.exited_in_error:
        return RankLife.FAILED
    if view.crashed_at_exit:
        return RankLife.DEAD
    if view.state is TapeState.FINISHED or view.has_left:
        return RankLife.FINISHED
    return RankLife.RUNNING if view.alive else RankLife.DEAD
