"""The snapshot of a run at one moment, on which verdicts are based. Frozen data only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from otel_torchdist.model.calls import Channel, GroupView, OperationId, OperationView, Progress, TimedWindow, Window
from otel_torchdist.model.kinds import TapeState
from otel_torchdist.model.names import GIVEN_UP, RaisedName
from otel_torchdist.model.rank_state.lives import Death, Lifetime, RankLife, Stopped
from otel_torchdist.model.rank_state.occupations import (
    NO_CHECKPOINTS,
    NO_PACE,
    CallPace,
    ChildWait,
    Occupation,
    RankCheckpoints,
    SharedGroup,
)
from otel_torchdist.model.rank_state.rescue import NO_RESCUE, Rescue, RescueState
from otel_torchdist.model.rank_state.stacks import Stacks
from otel_torchdist.model.rank_state.symptoms import Symptom
from otel_torchdist.model.rank_state.values import NO_VALUES, RankValues
from otel_torchdist.model.remote_calls import WorkerView


@dataclass(frozen=True, slots=True)
class RankView:
    """The snapshot of one rank.

    Attributes:
        rank: Global rank.
        nonce: Nonce of the tape.
        run: 128-bit id of the run; 0 if not yet known.
        run_is_sure: False while the run id may still be the id of an earlier attempt.
        created_ns: When the tape was created.
        alive: Whether the process exists.
        state: The last recorded state.
        failure: Type of the exception that ended the rank, or ''.
        gone_since_ns: When the process was first observed to be gone; None while it is alive.
        heartbeat_ns: Last heartbeat: Python threads ran at that time.
        step: The current step.
        open: Operations that have not ended, oldest first.
        last: The operation that ended last.
        progress: Progress in each channel.
        losses: Number of times that records were lost before they were read.
        forgotten: Whether channels were dropped because there are too many.
        wall_offset_ns: Wall clock minus monotonic clock.
        stacks: Result of the newest request for stacks; None if there was no request.
        stopped: The kernel state that keeps the process from running; None if it runs, or if unknown.
        expects_until_ns: Deadline of a wait by or for this rank that `expect_wait` announced; 0 for none.
        windows: Recent calls in each group; see `CallLog`.
        arrivals: Recent arrival times in each group; see `ArrivalLog`.
        groups: The groups in use, by key.
        seen_alive_ns: When the process was last seen alive; 0 for never.
        is_new: Whether this agent is the first to read the tape.
        ran_ns: When the kernel last showed the process running although its heartbeat had stopped; 0 for never.
        is_remote: Whether another agent reads the tape.
        death: The death observed by the rank's agent; None if none was observed.
        child: The child process that the rank's stack waits for; None if there is none.
        values: Checked values in the rank's tensors.
        rescue: Progress of the rescue, as recorded.
        asked_signal: The signal that asked the process to end, if such signals are recorded; 0 for none.
        asked_ns: When that signal arrived.
        checkpoints: Checkpoints in progress, and failed ones.
        shared_groups: Groups with two threads of the rank in collectives at the same time.
        fell_silent: Whether the rank counts as gone only because the others kept showing signs of life. Its process may
            have died or been stopped, or native code holds the GIL.
        symptoms: Recent symptoms of the machine that may explain a stall.
        worker: The rank as an RPC worker; None if it is not one.
        world: The rank's world, if it is the world of a standalone process group; '' for the default group's.
        world_size: Number of ranks in that world; 0 if unknown.
        world_ranks: Rank of this process in each world created by its program, by the key of the group.
        pace: The pace of calls.
        raised: The exception that ended the rank; None if unknown.
        twins: Process ids of all live processes that claim to be this rank, ascending; empty unless there are several.
        other_sizes: By rank: world size of a process that uses the same address for a world of a different size.
        occupations: Activities of threads that may wait for operations without a record of it.
        clock_error_ns: Upper bound on the error of times that another agent read on its own clock.
        switched_off_ns: When recording was switched off in the rank, whose process goes on; 0 if it was not.
        data_wait_ns: Total time that the training thread has waited for data.
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
    world_ranks: Mapping[str, int] = field(default_factory=dict[str, int])
    other_sizes: Mapping[int, int] = field(default_factory=dict[int, int])
    data_wait_ns: int = 0
    occupations: tuple[Occupation, ...] = ()
    clock_error_ns: int = 0
    pace: CallPace = NO_PACE
    twins: tuple[int, ...] = ()
    raised: RaisedName | None = None
    switched_off_ns: int = 0

    @property
    def is_dead(self) -> bool:
        """Whether the rank is gone and did not end cleanly."""
        if self.alive or self.has_given_up:
            return False
        if self.state is TapeState.FINISHED:
            return self.exited_in_error or self.crashed_at_exit
        return not self.has_left

    @property
    def exit_code(self) -> int | None:
        """The exit code of the process; None if it did not exit, or if unknown."""
        return self.death.exit_code if self.death is not None else None

    @property
    def exited_in_error(self) -> bool:
        """Whether the program ended by `sys.exit` with an error code, after handling its exceptions itself."""
        return self.state is TapeState.FINISHED and self.death is not None and self.death.exited_in_error

    @property
    def crashed_at_exit(self) -> bool:
        """Whether the process crashed after the end of its script. A launcher then ends the others."""
        return self.state is TapeState.FINISHED and self.death is not None and self.death.crashed_at_exit

    @property
    def has_given_up(self) -> bool:
        """Whether its backend gave up waiting for the others. The process's end is then no evidence against it."""
        return self.failure == GIVEN_UP and self.state is TapeState.RUNNING

    @property
    def has_left(self) -> bool:
        """Whether the process exited with code 0 outside of any operation, by `os._exit`, which leaves no record."""
        return self.exit_code == 0 and not self.alive and self.state is TapeState.RUNNING and not self.open

    @property
    def end(self) -> Death | None:
        """The death, with the signal that had asked the process to end, if one had."""
        if self.death is None or not self.asked_signal:
            return self.death
        return replace(self.death, asked=self.asked_signal, asked_ns=self.asked_ns)

    @property
    def rescued(self) -> Rescue:
        """The rescue; `DEAD` if the process died before the rescue reached a final state."""
        is_over = not self.alive and not self.rescue.state.is_final
        return Rescue(RescueState.DEAD, self.rescue.step) if is_over else self.rescue

    @property
    def lifetime(self) -> Lifetime:
        """The known lifetime, by heartbeats, by observations of the process, and by its recorded death."""
        died_ns = self.death.at_ns if self.death is not None else 0
        seen_ns = max(self.heartbeat_ns, self.seen_alive_ns, died_ns)
        return Lifetime(self.created_ns, seen_ns, self.alive, self.run_is_sure)

    @property
    def is_over(self) -> bool:
        """Whether the rank makes no more calls: its process is gone, or recorded that it finished or failed."""
        return not self.alive or self.state is not TapeState.RUNNING

    def at(self, operation_id: OperationId) -> OperationView | None:
        """Return the rank's open operation with this id, or None."""
        return next((operation for operation in self.open if operation.operation_id == operation_id), None)

    def uses(self, thread: int, channel: Channel) -> bool:
        """Return whether a thread of this rank uses a channel. Return True if the channel's threads are unknown."""
        progress = self.progress.get(channel)
        return progress is None or not progress.threads or thread in progress.threads

    def waits_in(self, operation: OperationView) -> bool:
        """Return whether an open operation shows that this rank waits.

        Once the rank has recorded its end, only operations that block a thread count.
        """
        if not (self.alive or self.has_given_up) or operation.waiting_since_ns is None:
            return False
        return self.state is TapeState.RUNNING or operation.record.is_blocking


@dataclass(frozen=True, slots=True)
class WorldSnapshot:
    """The visible ranks of one run at one moment.

    Attributes:
        run: 128-bit id; 0 for ranks without one yet.
        taken_ns: Monotonic time.
        ranks: By global rank.
        unreachable: Ranks whose agent does not answer, with the agent's host.
        source: Distinguishes snapshots with the same run id. '' for a run of this process's user; else the name of the
            other user, who may have forged the id, or the directory of ranks without an id.
        is_foreign: Whether the ranks belong to another user.
        looked_ns: When the reader began to read the tapes; 0 if unknown. Reading takes time on a busy machine, and
            records written since then may be missing.
        other_versions: Versions of agents that exchange no data because theirs differ too much, by host.
    """

    run: int
    taken_ns: int
    ranks: Mapping[int, RankView]
    unreachable: Mapping[int, str] = field(default_factory=dict[int, str])
    source: str = ""
    is_foreign: bool = False
    looked_ns: int = 0
    other_versions: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def rescues(self) -> dict[int, Rescue]:
        """The rescue of each rank; empty if none has begun."""
        was_begun = any(view.rescue.state is not RescueState.NONE for view in self.ranks.values())
        return {rank: view.rescued for rank, view in self.ranks.items()} if was_begun else {}

    @property
    def switched_off_ns(self) -> int:
        """When recording was first switched off in a rank; 0 if it was not. Later operations are unknown."""
        return min((view.switched_off_ns for view in self.ranks.values() if view.switched_off_ns), default=0)

    @property
    def switched_off_wall_ns(self) -> int:
        """The same in nanoseconds since the epoch."""
        off = (view for view in self.ranks.values() if view.switched_off_ns)
        return min((view.switched_off_ns + view.wall_offset_ns for view in off), default=0)

    @property
    def in_order(self) -> list[RankView]:
        """The ranks, ascending."""
        return [self.ranks[rank] for rank in sorted(self.ranks)]

    def group(self, key: str) -> GroupView | None:
        """Return a group by its key, as its first member sees it, or None if unknown."""
        return next((view.groups[key] for view in self.in_order if key in view.groups), None)


def life_in(view: RankView) -> RankLife:
    """Classify a rank in a snapshot as running, finished, failed or dead."""
    if view.state is TapeState.FAILED or view.exited_in_error:
        return RankLife.FAILED
    if view.crashed_at_exit:
        return RankLife.DEAD
    if view.state is TapeState.FINISHED or view.has_left:
        return RankLife.FINISHED
    return RankLife.RUNNING if view.alive else RankLife.DEAD
