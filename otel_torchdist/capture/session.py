"""The capture session: owns tapes, groups and hooks, and starts and ends them with the default group."""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.distributed import ProcessGroup

from otel_torchdist import guard
from otel_torchdist.capture.agreement.agreements import RPC_RUN, Agreements
from otel_torchdist.capture.c10d.coalescing import Coalescing
from otel_torchdist.capture.c10d.completion import Works
from otel_torchdist.capture.c10d.devices import Devices
from otel_torchdist.capture.c10d.dispatcher import Dispatcher, usable_library
from otel_torchdist.capture.c10d.groups.creation import Rendezvous, follow_creation
from otel_torchdist.capture.c10d.groups.groups import Groups, GroupState
from otel_torchdist.capture.c10d.groups.reconfigure import Reconfigurations
from otel_torchdist.capture.c10d.groups.worlds import PlaceInWorld, world_of
from otel_torchdist.capture.c10d.hot_path import HotPath
from otel_torchdist.capture.c10d.timeouts import follow_timeouts
from otel_torchdist.capture.one_sided.symmetric_memory import OneSided, SymmetricMemory
from otel_torchdist.capture.one_sided.windows import Windows
from otel_torchdist.capture.raised import describe_raised
from otel_torchdist.capture.rank_thread import RankThread
from otel_torchdist.capture.rarely_used import cuda_operations, follow_lone_backends, native_kernels, observed_calls
from otel_torchdist.capture.recorder import Recorder
from otel_torchdist.capture.requests.abort import AbortHooks
from otel_torchdist.capture.requests.answers import RequestAnswers
from otel_torchdist.capture.rpc.joining import RpcJoining
from otel_torchdist.capture.torch_api import Patches, backend_and_store, default_group, known_groups, names_with_kernels
from otel_torchdist.capture.training.steps import WINDOW, StepSource
from otel_torchdist.capture.training_loop import TrainingLoop
from otel_torchdist.errors import TapeError
from otel_torchdist.model.kinds import TapeState
from otel_torchdist.model.names import RaisedName
from otel_torchdist.this_process.end import ProcessEnd, uncaught_error

if TYPE_CHECKING:
    from otel_torchdist.capture.c10d.groups.launch import Launch
    from otel_torchdist.capture.c10d.groups.rendezvous import Rendezvous
    from otel_torchdist.capture.observers.choice import Observing
    from otel_torchdist.native.library import Library

_logger = logging.getLogger("otel_torchdist")
SWEEP_LIMIT: Final = 1024
SETTLE_S: Final = 0.5


class Capture:
    """Records every collective of this process from `install` to `uninstall`."""

    def __init__(
        self,
        directory: Callable[[], Path],
        capacity: int,
        exchange_host: str | None = None,
        has_abort_hooks: bool = False,
        library: Library | None = None,
        observing: Observing | None = None,
    ) -> None:
        """Initialize the capture; nothing is patched until `install`.

        Args:
            directory: Returns the job directory for a new tape; raises TapeError if there is none.
            capacity: Number of records in a tape's ring.
            exchange_host: Address at which this node's agent listens for agents of other nodes, '' to determine it
                automatically; None if the agents do not exchange data.
            has_abort_hooks: Whether backends should report that they abort; see `AbortHooks`.
            library: The native library; None to record in Python, as always where observers need the tensors.
            observing: What looks at the tensors of operations; None for nothing.
        """
        self._abort_hooks = AbortHooks(has_abort_hooks)
        self._directory = directory
        self._capacity = capacity
        self._listeners: list[Callable[[Recorder], None]] = []
        self._beat_listeners: list[Callable[[], None]] = []
        self._patches = Patches()
        self._groups = Groups()
        self._watch = RankThread(self._beat, self._poll, self._calls)
        self._observing = observing
        self._library = library = usable_library(library) if observing is None or observing.is_none else None
        self._native = native_kernels(library)
        self._works = Works(self._patches, self._watch.poll_soon, library.make_wait if library is not None else None)
        if self._native is not None:
            self._native.follow_waits(self._works.waits)
        self._devices = Devices(partial(cuda_operations, self._native))
        if self._native is not None:
            self._native.follow_devices(self._devices)
        self._observed = observed_calls(observing, self._meet, self._patches, self.current_recorder, self._devices)
        self._loop = TrainingLoop(self._groups.issued_by_default, self._meet, self._patches, library)
        self._steps = self._loop.steps
        self._hot_path = HotPath(
            self._groups,
            self._steps,
            self._works,
            self._devices,
            self._meet,
            self._loop.labels,
            partial(_forget_in_child, weakref.ref(self)),
        )
        self._dispatcher: Dispatcher | None = None
        self._one_sided = OneSided(self._meet)
        self._symmetric_memory: SymmetricMemory | None = None
        self._recorder: Recorder | None = None
        self._launch: Launch | None = None
        self._agreements = Agreements(self._groups, exchange_host)
        self._rpc = RpcJoining(self, self._watch.poll_soon, self._steps.call_begins, self._patches)
        self._is_of_rpc = False
        self._requests = RequestAnswers()
        self._end = ProcessEnd(self._at_end)
        self._begins_tapes = False

    def on_tape(self, listener: Callable[[Recorder], None]) -> None:
        """Call `listener` with each new recorder as soon as its tape has been created."""
        self._listeners.append(listener)

    def on_beat(self, listener: Callable[[], None]) -> None:
        """Call `listener` once a second, on our own thread, while there is a tape."""
        self._beat_listeners.append(listener)

    def install(self) -> None:
        """Start recording; groups that already exist are included, with their sequences marked unaligned."""
        existing = known_groups()
        self._groups.born_before_us(existing)
        self._launch = follow_creation(self._patches, self)
        follow_timeouts(self._patches, self._groups.renew_timeouts)
        follow_lone_backends(self._patches, self._hot_path)
        Coalescing(self._groups, self._hot_path, self._meet).hook(self._patches)
        Reconfigurations(self._groups, self._works, self._meet).hook(self._patches)
        self._loop.hook()
        if self._observed is not None:
            self._observed.hook()
        names = names_with_kernels("c10d", "symm_mem")
        self._dispatcher = Dispatcher(self._hot_path, self._works, self._native, self._observed, names)
        Windows(self._one_sided).hook(self._patches)
        self._symmetric_memory = SymmetricMemory(self._one_sided, names)
        os.register_at_fork(after_in_child=partial(_forget_in_child, weakref.ref(self)))
        self._begins_tapes = True
        if torch.distributed.is_initialized():
            default = default_group()
            self.default_group_begins(default.rank(), default.size())
            for group in existing:
                self._meet(group)
            self.default_group_set(default)
        self._rpc.hook()

    def uninstall(self) -> None:
        """Stop recording and put everything back as it was."""
        self._begins_tapes = False
        self._end.disarm()
        if self._dispatcher is not None:
            self._dispatcher.remove()
        if self._symmetric_memory is not None:
            self._symmetric_memory.remove()
        self._dispatcher = self._symmetric_memory = None
        self._loop.unhook()
        if self._observed is not None:
            self._observed.unhook()
        self._patches.restore()
        self._rpc.unhook()
        self._watch.stop(timeout_s=2.0)
        self._end_recorder(TapeState.FINISHED)
        self._devices.stop(timeout_s=2.0, give_events_up=True)

    # --- groups ----------------------------------------------------------------------------------------------

    def default_group_begins(self, rank: int, world_size: int, world: str = "") -> Recorder | None:
        """Start a tape and finish the previous one, if any; one that RPC has begun goes on if it is of this rank.

        Args:
            rank: This rank.
            world_size: How many ranks there are.
            world: As in `TapeIdentity`.
        """
        if self._is_of_rpc and self._recorder is not None and self._recorder.is_of(rank, world_size):
            return self._recorder
        self._end_recorder(TapeState.FINISHED)
        if not self._begins_tapes:
            return None
        if self._observed is not None:
            self._observed.rank_begins(rank, world_size)
        try:
            # A fake group may have neither a rank nor a size.
            recorder = Recorder(
                self._directory(),
                max(rank, 0),
                max(world_size, 1),
                self._capacity,
                self._library,
                self._observing is not None and self._observing.synchronizes,
                self._observing is not None and self._observing.checks_values(rank),
                world,
            )
        except TapeError as error:
            self._begins_tapes = False
            _logger.warning("otel_torchdist is off in this process, nothing is recorded: %s", error)
            return None
        self._recorder = recorder
        self._loop.write_to(recorder)
        if recorder.native is not None:
            recorder.native.begin(WINDOW)
            if self._steps.source is not StepSource.WINDOWS:
                recorder.native.stop_windows()
        self._requests.begin(recorder.tape.path)
        for listener in self._listeners:
            with guard.guarded("new tape"):
                listener(recorder)
        self._watch.start()  # after the listeners: its first beat is immediate and starts the agent
        self._end.arm()  # after the listeners: the tape is then finished before their final read
        with guard.guarded("remote calls"):
            self._rpc.take_recorder(recorder)
        return recorder

    def world_begins(self, place: PlaceInWorld, world_size: int) -> Recorder | None:
        """Record a world that is made by hand with the recorder in use: this process leaves none of its other worlds.

        A process that is in no other starts a tape, whose rank is that in this world.
        """
        recorder = self._recorder
        if recorder is None:
            recorder = self.default_group_begins(place.here, world_size, place.world)
            if recorder is not None:
                self._agreements.agree(recorder, None)
        if recorder is not None:
            recorder.worlds.add(place.world)
        return recorder

    def place_of(self, group: ProcessGroup) -> PlaceInWorld:
        """Which world a group is of."""
        known = self._groups.find(group)
        return PlaceInWorld(known.name.world, known.name.here) if known is not None else world_of(group)

    @property
    def cuda_device(self) -> int | None:
        """Index of the CUDA device of the first operation on one; None before."""
        return self._devices.first_cuda

    def current_recorder(self) -> Recorder | None:
        """The recorder in use; None if there is none."""
        return self._recorder

    def group_created(self, group: ProcessGroup, rendezvous: Rendezvous) -> None:
        """Register a group whose creation was observed."""
        recorder = rendezvous.recorder
        if recorder is not None and self._groups.find(group) is None:
            self._groups.learn(
                recorder, group, rendezvous.ranks, rendezvous.nth, place=rendezvous.place, address=rendezvous.address
            )
            self._abort_hooks.attach(recorder, group)

    def default_group_set(self, group: ProcessGroup | None) -> None:
        """Register the default group and agree on the run id, or end the tape if there is none any more."""
        if group is None:
            if self._is_of_rpc:  # its tape goes on
                self._works.settle(SWEEP_LIMIT)
                self._works.forget_all()
                self._forget_groups()
            else:
                self._end_recorder(TapeState.FINISHED)
            return
        before = self._groups.default if self._recorder is not None else None
        if before is not None and before is self._groups.find(group):
            return
        if self._recorder is None or before is not None:  # created elsewhere, or replaces one that still exists
            self.default_group_begins(group.rank(), group.size())
            self._groups.begins(group)
        state = self._meet(group)
        if self._recorder is None or state is None:
            return
        state.become_default()
        self._groups.default = state
        if not self._is_of_rpc:
            self._agreements.agree(self._recorder, backend_and_store(group)[1])

    # --- RPC -------------------------------------------------------------------------------------------------

    def rpc_begins(self, rank: int, world_size: int | None, store: Any) -> Recorder | None:
        """Return the recorder of the default group; without one, start a tape of a worker, whose id is its rank."""
        recorder = self._recorder
        if recorder is None:
            recorder = self.default_group_begins(rank, world_size or rank + 1)
            if recorder is not None:
                self._is_of_rpc = True
                self._agreements.agree(recorder, store, RPC_RUN)
        elif rank == 0 and not self._is_of_rpc:
            # Ids of workers are no ranks: workers in no group are a run of their own.
            self._agreements.set_for_others(recorder, store)
        return recorder

    def rpc_ended(self) -> None:
        """End the tape, unless a default group goes on with it."""
        is_of_rpc, self._is_of_rpc = self._is_of_rpc, False
        if is_of_rpc and self._groups.default is None:
            self._end_recorder(TapeState.FINISHED)

    def _meet(self, group: ProcessGroup) -> GroupState | None:
        """Find a group; register one that is first seen in an operation or existed before capture was installed."""
        known = self._groups.find(group)
        if known is not None:
            return known
        place = world_of(group)
        if place.is_by_hand:
            recorder = self.world_begins(place, group.size())
        else:
            recorder = self._recorder or self._lone_group_begins(group)
        if recorder is None:
            return None
        self._abort_hooks.attach(recorder, group)
        return self._groups.learn(recorder, group, place=place)

    def _lone_group_begins(self, group: ProcessGroup) -> Recorder | None:
        recorder = self.default_group_begins(group.rank(), group.size())
        if recorder is not None:
            self._agreements.agree(recorder, None)
        return recorder

    def _end_recorder(self, state: TapeState, failure: RaisedName | None = None) -> None:
        recorder, self._recorder = self._recorder, None
        self._loop.write_to(None)
        self._is_of_rpc = False
        try:
            self._agreements.stop()
            if state is TapeState.FINISHED:  # a launcher may end a rank that has failed at any moment
                self._works.settle(SWEEP_LIMIT)
        finally:  # a signal handler may raise while we wait
            if recorder is not None:
                self._finish(recorder, state, failure)

    def _finish(self, recorder: Recorder, state: TapeState, failure: RaisedName | None) -> None:
        if recorder.native is not None:
            recorder.native.end()
        with guard.guarded("remote calls"):
            self._rpc.sweep(of_all_ages=True)
            self._rpc.take_recorder(None)
        self._works.sweep(SWEEP_LIMIT)
        self._works.forget_all()
        self._devices.settle(SETTLE_S)
        self._forget_groups()
        self._one_sided.forget_all()
        if self._observed is not None:
            self._observed.forget_all()
        self._abort_hooks.detach_all()
        self._requests.end(recorder.tape.path)
        self._loop.forget_all(ends_left=True)
        recorder.close(state, failure)

    def _forget_groups(self) -> None:
        self._groups.clear()
        if self._native is not None:
            self._native.forget()
        self._hot_path.forget_threads()

    # --- our thread, fork, exit ------------------------------------------------------------------------------

    def _beat(self) -> None:
        recorder = self._recorder
        if recorder is None:
            return
        recorder.tape.beat()
        recorder.tape.keep_files()
        recorder.warn_of_names()
        if self._launch is not None:
            self._launch.beat()
        self._works.sweep(SWEEP_LIMIT)
        self._works.let_go_of_issued()
        self._rpc.sweep(of_all_ages=True)
        self._loop.beat()
        self._requests.answer(recorder)
        for listener in self._beat_listeners:
            with guard.guarded("beat"):
                listener()

    def _poll(self) -> bool:
        has_open_works = self._works.sweep(SWEEP_LIMIT) > 0
        return self._rpc.sweep() or has_open_works

    def _calls(self) -> int:
        recorder = self._recorder
        return recorder.tape.next_number() if recorder is not None else 0

    def after_fork_in_child(self) -> None:
        """Reset: a child is not a rank until it creates its own group, and it never writes to its parent's tape."""
        self._recorder = None
        self._agreements.forget_all()
        self._loop.write_to(None)
        self._groups.clear()
        if self._native is not None:
            self._native.forget()
        self._works.forget_all()
        if self._observed is not None:
            self._observed.forget_all()
        self._watch = RankThread(self._beat, self._poll, self._calls)
        self._works.on_async = self._watch.poll_soon
        self._rpc.after_fork_in_child(self._watch.poll_soon)
        self._devices.after_fork_in_child()
        self._loop.forget_all(ends_left=False)
        self._hot_path.forget_threads()
        self._requests.after_fork_in_child()

    def _at_end(self) -> None:
        """Finish the tape; operations that other exit handlers issue afterwards are not recorded."""
        self._begins_tapes = False
        self._watch.stop(timeout_s=1.0)
        error = uncaught_error()
        with guard.guarded("exit"):
            if error is None:
                self._end_recorder(TapeState.FINISHED)
            else:
                self._end_recorder(TapeState.FAILED, describe_raised(error))
            self._devices.stop(timeout_s=1.0)
            # What the dispatcher's kernels refer to outlives Python. If that led to what we have replaced in torch, so
            # would its groups: NCCL's would neither warn nor wait for a watchdog that is about to end the process.
            # Hooks stay: other threads may run through them.
            self._loop.restore()
            self._patches.restore()


def _forget_in_child(reference: weakref.ref[Capture]) -> None:
    capture = reference()
    if capture is not None:
        capture.after_fork_in_child()
