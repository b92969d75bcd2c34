"""Follows tapes and takes snapshots of them."""

from __future__ import annotations

import dataclasses
from typing import Final

from otel_torchdist.errors import TapeError
from otel_torchdist.judge.world.following.baselines import Baselines, PaceLog
from otel_torchdist.judge.world.following.channels import ChannelProgress, RankLogs
from otel_torchdist.judge.world.following.child_waits import ChildWaits
from otel_torchdist.judge.world.following.starting_ranks import patience_ns
from otel_torchdist.judge.world.following.values import ValueLog
from otel_torchdist.judge.world.occupations import SharedGroups, occupations_of, worker_of
from otel_torchdist.judge.world.part_sizes import part_sizes, wants_one_size
from otel_torchdist.judge.world.resolved import ResolvedNames
from otel_torchdist.model.calls import MAX_ARRIVAL_FRAMES, UNREAD, Arrival, OperationView
from otel_torchdist.model.kinds import Flag, How, RecordKind, RunIdState, TapeState
from otel_torchdist.model.names import CallSiteName, SignatureName
from otel_torchdist.model.operations import Operation
from otel_torchdist.model.rank_state.lives import Death
from otel_torchdist.model.rank_state.occupations import CallPace
from otel_torchdist.model.rank_state.stacks import Stacks
from otel_torchdist.model.recording_level import RecordingLevel
from otel_torchdist.model.snapshot import RankView
from otel_torchdist.node.job.bundled import RunningRank
from otel_torchdist.node.job.requests.stacks_file import StacksFile
from otel_torchdist.node.machine.reader import RankSymptoms
from otel_torchdist.node.processes.children import CpuTime
from otel_torchdist.node.processes.endings import Deaths
from otel_torchdist.node.processes.stack_signal import StackSignal, ask_by_signal
from otel_torchdist.node.processes.state import ProcessState
from otel_torchdist.tape.figures import FigureWord
from otel_torchdist.tape.layout import clipped
from otel_torchdist.tape.reading.batch import Batch
from otel_torchdist.tape.reading.reader import TapeReader
from otel_torchdist.tape.records.checkpoint_log import CheckpointLog
from otel_torchdist.tape.status import WallClock

_ON_DEVICE: Final = int(Flag.ON_DEVICE)
_REDUCE_OP_UNREAD: Final = int(Flag.REDUCE_OP_UNREAD)
"""Plain integers: arithmetic with enum members is several times slower."""
CLOSING_NS: Final = 1_000_000_000
"""Maximum time in ns for which a process without its lock counts as alive, until the kernel has closed its other
files."""


class TapeFollower:
    """The state that a snapshot of one rank needs: sequences of each channel, the last operation, its stacks.

    Attributes:
        reader: The tape. The caller that polls it must pass every batch to `observe`.
        failure: The exception raised by `view`. A tape with a failure is not viewed again.
        is_last_check: Whether this is the last pass, in which all available calls are compared.
    """

    def __init__(
        self,
        reader: TapeReader,
        deaths: Deaths | None = None,
        is_new: bool = False,
        machine: RankSymptoms | None = None,
        bundled: RunningRank | None = None,
    ) -> None:
        """Follow a tape, starting with the first batch of its reader.

        Args:
            reader: See the class.
            deaths: Deaths of processes seen by this agent.
            is_new: Whether no agent has read the tape before.
            machine: Symptoms of this machine.
            bundled: The rank's process when a bundle with this tape was written; None for a tape in place, and for a
                rank that had ended by then.
        """
        self.reader = reader
        self._machine = machine
        self._deaths = deaths
        self._is_new = is_new
        self._unlocked_ns: int | None = None
        self._is_ending = deaths is not None and deaths.death_of(reader.identity.nonce) is not None
        self.is_last_check = False
        self._resolved = ResolvedNames(reader.names, reader.identity.rank, reader.identity.world)
        self._progress = ChannelProgress()
        self._views: dict[int, OperationView] = {}
        self._without_reduce_op: dict[int, SignatureName] = {}
        self._frames: dict[int, tuple[CallSiteName, ...]] = {}
        self._last: Operation | None = None
        self._last_number = 0
        self._losses = 0
        self._gone_since_ns: int | None = None
        self._seen_alive_ns = 0
        self._clock = WallClock(reader.identity)
        self._baselines = Baselines(reader.names.site_id)
        self._logs = RankLogs()
        self._values = ValueLog(reader.identity.checks_values, self._resolved)
        self._checkpoints = CheckpointLog(reader.names)
        self._shared_groups = SharedGroups(self._resolved)
        self._process = ProcessState(reader.identity)
        self._bundled = bundled
        self._pace = PaceLog()
        self._cpu = CpuTime(reader.identity)
        self._children = ChildWaits(reader.identity, reader.owner)
        self._request = 0
        self._stacks_file = StacksFile(reader.path, reader.owner)
        self._stacks: Stacks | None = None
        self._asked_by_signal: StackSignal | None = None
        self.failure: Exception | None = None

    @property
    def channels(self) -> int:
        """Number of channels whose progress is known."""
        return self._progress.count

    def observe(self, batch: Batch) -> None:
        """Process the batch of one poll of the tape."""
        certain_from = self._certain_from(batch)
        losses_before = self._losses
        self._losses += batch.lost > 0
        for operation in batch.entered:
            losses = self._losses if operation.number >= certain_from else losses_before
            self._entered(operation, losses)
        for operation in batch.ended:
            self._ended(operation)
        self._progress.settle()
        self._pace.observe(batch)
        if batch.numerics or batch.steps or batch.lost:
            self._values.observe(batch.entered, batch.numerics, batch.steps, batch.lost > 0)
        if batch.activities_entered or batch.activities_ended:
            self._checkpoints.observe(batch.activities_entered, batch.activities_ended)

    def _certain_from(self, batch: Batch) -> int:
        """Return the number of the first record after the last gap in a batch."""
        if not batch.lost:
            self._last_number = max(self._last_number, batch.last_number)
            return 0
        expected, certain = self._last_number + 1, 0
        for number in batch.numbers:
            if number != expected:
                certain = number
            expected = number + 1
        self._last_number = expected - 1
        return certain or expected

    def _entered(self, operation: Operation, losses: int) -> None:
        channel = self._resolved.channel(operation)
        group = self._resolved.group(operation.group)
        caller = self._resolved.caller(operation)
        arrival = Arrival(
            operation.sequence,
            self._signature_of(operation),
            operation.peer,
            caller=caller,
            frames=self._frames_of(operation),
            wants_one_size=wants_one_size(group, self.reader.names.signature(operation.signature)),
            label=(self.reader.names.label(operation.label, operation.piece) or "") if operation.label else "",
        )
        aligned = group is not None and group.name.aligned
        parts = part_sizes(operation, arrival.signature, len(group.members)) if group is not None else None
        arrived = arrival if parts is None else arrival._replace(parts=parts)
        self._progress.entered(channel, operation, arrived, aligned, losses)
        if not channel.is_point_to_point and channel.kind is RecordKind.OPERATION:
            self._logs.entered(channel, arrival, operation)

    def _signature_of(self, operation: Operation) -> SignatureName | None:
        """Return the signature of a call. Its reduce op is `UNREAD` if capture did not read it for this call."""
        signature = self.reader.names.signature(operation.signature)
        if signature is None or not int(operation.flags) & _REDUCE_OP_UNREAD:
            return signature
        known = self._without_reduce_op.get(operation.signature)
        if known is None:
            known = self._without_reduce_op[operation.signature] = dataclasses.replace(signature, reduce_op=UNREAD)
        return known

    def _frames_of(self, operation: Operation) -> tuple[CallSiteName, ...]:
        """Return the user frames that led to a call, innermost first."""
        known = self._frames.get(operation.call_site)
        if known is None:
            callers = self.reader.names.callers(operation.call_site)
            known = self._frames[operation.call_site] = callers[:MAX_ARRIVAL_FRAMES]
        return known

    def _ended(self, operation: Operation) -> None:
        self._baselines.ended(operation)
        self._shared_groups.ended(operation)
        if self._last is None or (operation.completed_ns or 0) >= (self._last.completed_ns or 0):
            self._last = operation
        channel = self._resolved.channel(operation)
        if operation.how is How.FAILED:
            failure = self.reader.names.text(operation.failure) or "an exception"
            self._progress.failed(channel, operation, failure)
        else:
            self._progress.ended(channel, operation)
        if int(operation.flags) & _ON_DEVICE:
            self._logs.ended_on_device(channel, operation)

    def ask_for_stacks(self, now_ns: int) -> None:
        """Request stacks from the rank without waiting. The answer appears in later views."""
        self._request = self.reader.request_stacks()
        earlier, earlier_ns = self._stacks.newest if self._stacks is not None else ((), 0)
        self._stacks = Stacks(now_ns, None, earlier=earlier, earlier_ns=earlier_ns)
        self._asked_by_signal = None

    def ask_by_signal(self) -> None:
        """Request, by a signal, the stack of the thread in an operation, else of the main thread."""
        blocking = (operation.thread for operation in self.reader.open_operations() if operation.is_blocking)
        self._asked_by_signal = ask_by_signal(self.reader, next(blocking, 0))

    def view(self, now_ns: int) -> RankView | None:
        """Return the current view of the rank; None if its tape can no longer be read."""
        # Check the lock before reading the status: a process records that it has finished, then releases its lock.
        alive, death = self._end(now_ns)
        try:
            status = self.reader.status()
            data_wait_ns = clipped(self.reader.words[FigureWord.DATA_WAIT_NS])
        except TapeError:
            return None
        if status.recording_level >= RecordingLevel.NO_VALUES:
            self._values.stop_checking()
        bundled = self._bundled
        stopped = self._process.check(now_ns, status.heartbeat_ns) if bundled is None else bundled.not_running
        if alive and self._deaths is not None:
            self._deaths.note(self.reader.identity.nonce, stopped, self._process.ran_ns)
        self._clock.update(status)
        if alive and (self._unlocked_ns is None or self._is_held()):
            self._seen_alive_ns = now_ns
        if not alive and self._gone_since_ns is None:
            self._gone_since_ns = self._unlocked_ns or now_ns
        identity, stacks = self.reader.identity, self._current_stacks()
        is_over = not alive or status.state is not TapeState.RUNNING
        return RankView(
            rank=identity.rank,
            nonce=identity.nonce,
            run=status.run_id,
            run_is_sure=status.run_id_state is not RunIdState.PROVISIONAL,
            host=identity.host,
            created_ns=identity.monotonic_ns,
            alive=alive,
            state=status.state,
            failure=self.reader.names.text(status.failure) or "",
            raised=self.reader.names.raised(status.failure),
            gone_since_ns=self._gone_since_ns,
            heartbeat_ns=status.heartbeat_ns,
            step=status.step,
            open=self._open_views(),
            last=None if self._last is None else self._view(self._last),
            progress=self._progress.shown,
            losses=self._losses,
            forgotten=self._progress.has_forgotten,
            wall_offset_ns=self._clock.wall_ns(0),
            stacks=stacks,
            values=self._values.shown,
            rescue=status.rescue,
            asked_signal=status.asked_signal,
            asked_ns=status.asked_ns,
            checkpoints=self._checkpoints.snapshot(self.reader.open_activities()),
            occupations=occupations_of(self.reader, status),
            shared_groups=self._shared_groups.shown,
            child=bundled.child if bundled else self._children.check(stacks, now_ns) if alive else None,
            stopped=stopped,
            ran_ns=self._process.ran_ns if bundled is None else bundled.ran_ns,
            expects_until_ns=status.expects_until_ns,
            windows=self._logs.all_windows if is_over or self.is_last_check else self._logs.windows,
            arrivals=self._logs.arrivals,
            groups=self._resolved.groups,
            world=identity.world,
            world_size=identity.world_size,
            world_ranks=self._resolved.world_ranks,
            seen_alive_ns=self._seen_alive_ns,
            is_new=self._is_new,
            death=death,
            symptoms=self._machine.symptoms_of(identity.nonce) if self._machine is not None else (),
            worker=worker_of(self.reader, status),
            pace=self._current_pace(now_ns, is_over),
            data_wait_ns=data_wait_ns,
            switched_off_ns=status.switched_off_ns,
        )

    def _current_pace(self, now_ns: int, is_over: bool) -> CallPace:
        pace = self._pace.shown(None)
        if is_over:
            return pace
        return self._pace.shown(self._cpu.check(now_ns, max(pace.called_ns, self.reader.identity.monotonic_ns)))

    def _end(self, now_ns: int) -> tuple[bool, Death | None]:
        """Return whether the rank is alive, and its death if observed before the last poll of its tape.

        A rank that ended after the last poll may have written more records, such as an operation's exception. Without
        these records, a rank interrupted by another death looks as if it had raised an exception by itself.
        """
        alive = self._is_alive(now_ns)
        # Read the death after the lock: a death observed in between explains the released lock.
        death = self._deaths.death_of(self.reader.identity.nonce) if self._deaths is not None else None
        is_new = not self._is_ending
        self._is_ending = self._unlocked_ns is not None or death is not None
        if is_new and self._deaths is not None:
            return True, None
        return alive and death is None, death

    def _is_alive(self, now_ns: int) -> bool:
        """Return whether the lock is held or, shortly after its release, the process has not ended yet."""
        if self._bundled is not None or self.reader.is_alive():
            self._unlocked_ns = None
            return True
        self._unlocked_ns = self._unlocked_ns or now_ns
        if self._deaths is None or now_ns - self._unlocked_ns > CLOSING_NS:
            return False
        return self._is_held() and not self._has_ended()

    def _is_held(self) -> bool:
        return self._deaths is not None and self._deaths.awaits_end(self.reader.identity.nonce)

    def _has_ended(self) -> bool:
        """Return whether the rank has recorded its end. Its process may run for any time after that."""
        try:
            return self.reader.status().state is not TapeState.RUNNING
        except TapeError:
            return True

    def _current_stacks(self) -> Stacks | None:
        if self._stacks is None or self._stacks.threads is not None or not self._request:
            return self._stacks
        threads = self._stacks_file.read(self._request)
        if threads is not None:
            self._stacks = Stacks(self._stacks.asked_ns, tuple(threads))
        elif self._asked_by_signal is not None and (stack := self._asked_by_signal.answer()) is not None:
            self._stacks = Stacks(self._stacks.asked_ns, (stack,), by_signal=True)
        return self._stacks

    def _open_views(self) -> tuple[OperationView, ...]:
        # The reader returns the same object for an unchanged operation, so its view is reused.
        operations = self.reader.open_operations()
        if any(operation.kind is RecordKind.RENDEZVOUS for operation in operations):
            self._look_for_new_names()
        views = {operation.number: self._view(operation) for operation in operations}
        self._views = views
        return tuple(views.values())

    def _look_for_new_names(self) -> None:
        """Reload names, in case a group being created was renamed. Its record stays the same."""
        names = self.reader.names
        renamed = names.renamed
        names.refresh()
        if names.renamed != renamed:
            self._views = {}

    def _view(self, operation: Operation) -> OperationView:
        known = self._views.get(operation.number)
        if known is not None and known.record is operation:
            return known
        baselines = self._baselines
        starting_ns = patience_ns(operation, self.reader.identity, self.reader.owner) if self._bundled is None else 0
        tolerance_ns = max(baselines.tolerance_ns(operation), starting_ns)
        return self._resolved.operation(operation, tolerance_ns, baselines.longest_ns(operation))
