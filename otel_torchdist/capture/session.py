"""The capture session: assembles its parts, and switches them on and off."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from otel_torchdist import guard
from otel_torchdist.capture.core.budget import OverheadBudget
from otel_torchdist.capture.core.c10d.coalescing import Coalescing
from otel_torchdist.capture.core.c10d.completion import Works
from otel_torchdist.capture.core.c10d.devices import Devices
from otel_torchdist.capture.core.c10d.dispatcher import Dispatcher, usable_library
from otel_torchdist.capture.core.c10d.hot_path import HotPath
from otel_torchdist.capture.core.c10d.reconfigure import Reconfigurations
from otel_torchdist.capture.core.calls.schemas import OperationSchema, collective_schemas
from otel_torchdist.capture.core.failures import describe_raised
from otel_torchdist.capture.core.groups.creation import GroupCreation
from otel_torchdist.capture.core.groups.groups import Groups
from otel_torchdist.capture.core.rank_thread import RankThread
from otel_torchdist.capture.core.recorder import Recorder
from otel_torchdist.capture.core.requests.abort import AbortHooks
from otel_torchdist.capture.core.requests.answers import RequestAnswers
from otel_torchdist.capture.core.run.agreements import Agreements
from otel_torchdist.capture.core.run.pause import Pause
from otel_torchdist.capture.core.run.recording import RunRecording
from otel_torchdist.capture.core.run.runs import Runs
from otel_torchdist.capture.core.torch_api import Patches, known_groups, names_with_kernels
from otel_torchdist.capture.on_demand import (
    StandaloneBackendCreation,
    cuda_operations,
    native_kernels,
    observed_calls,
    ray_training,
)
from otel_torchdist.capture.parts.loop import TrainingLoop
from otel_torchdist.capture.parts.one_sided import OneSided, SymmetricMemory, Windows
from otel_torchdist.capture.parts.rpc.joining import RpcJoining
from otel_torchdist.capture.parts.steps import StepSource
from otel_torchdist.model.kinds import TapeState
from otel_torchdist.system.this_process.end import ProcessEnd, uncaught_error

if TYPE_CHECKING:
    from otel_torchdist.capture.core.part import SessionPart
    from otel_torchdist.capture.tensors.choice import Observers
    from otel_torchdist.native.library import Library
    from otel_torchdist.node.off_switch import OffSwitch


class Capture:
    """The capture session of this process. Records every collective between `install` and `uninstall`."""

    def __init__(
        self,
        directory: Callable[[], Path],
        capacity: int,
        exchange_host: str | None = None,
        has_abort_hooks: bool = False,
        library: Library | None = None,
        observers: Observers | None = None,
        off_switch: OffSwitch | None = None,
        overhead_budget: float = 0,
    ) -> None:
        """Initialize the capture. Nothing is recorded until `install`.

        Args:
            directory: Returns the job directory for a new tape. Raises TapeError if there is none.
            capacity: Number of records in a tape's ring buffer.
            exchange_host: Address at which this node's agent listens for agents of other nodes; '' to determine it
                automatically, None if the agents do not exchange data.
            has_abort_hooks: Whether to install abort hooks; see `AbortHooks`.
            library: The native library; None to record in Python. Observers of tensors always require Python.
            observers: The observers of tensors; None without observers.
            off_switch: Finds the file that switches recording off; None to never look.
            overhead_budget: See `OverheadBudget`.
        """
        self._directory = directory
        self._capacity = capacity
        self._observers = observers
        names = names_with_kernels("c10d", "symm_mem")
        schemas = collective_schemas(names)
        self._library = usable_library(library, schemas) if observers is None or observers.is_empty else None
        self._listeners: list[Callable[[Recorder], None]] = []
        self._beat_listeners: list[Callable[[], None]] = []
        self._end_listeners: list[Callable[[], None]] = []
        self._end = ProcessEnd(self._at_end)
        self._recording = RunRecording(self._make_recorder, self._tape_begun)
        self._rank_thread = RankThread(self._beat, self._recording.poll, self._recording.record_count)
        self._patches = Patches()
        self._groups = Groups()
        agreements, abort_hooks = Agreements(self._groups, exchange_host), AbortHooks(has_abort_hooks)
        self._runs = Runs(self._recording, self._groups, agreements, abort_hooks)
        self._pause = Pause(off_switch, self._recording, self._runs, self._library)
        self._recording.before_tape = self._check_pause
        self._overhead_budget = overhead_budget
        self._assemble(agreements, abort_hooks, names, schemas)

    def _assemble(
        self, agreements: Agreements, abort_hooks: AbortHooks, names: set[str], schemas: list[OperationSchema]
    ) -> None:
        """Create the parts in their order; see `SessionPart`."""
        patches, groups, find_group, library = self._patches, self._groups, self._runs.find_group, self._library
        native = native_kernels(library)
        works = Works(patches, self._rank_thread.poll_soon, library.make_wait if library is not None else None)
        self._devices = devices = Devices(partial(cuda_operations, native))
        if native is not None:
            native.follow_waits(works.waits)
            native.follow_devices(devices)
        observed = observed_calls(self._observers, find_group, patches, self.current_recorder, devices)
        loop = TrainingLoop(groups.issued_by_default, find_group, patches, library)
        forked = partial(_forget_in_child, weakref.ref(self))
        hot_path = HotPath(groups, loop.steps, works, devices, find_group, loop.labels, forked)
        one_sided = OneSided(find_group)
        self._rpc = RpcJoining(self._runs, self._rank_thread.poll_soon, loop.steps.call_begins, patches)
        parts: list[SessionPart | None] = [
            RequestAnswers(),  # answers after everything else is recorded
            OverheadBudget(
                self._overhead_budget,
                lambda: loop.steps.source is not StepSource.WINDOWS,
                self._observers is not None and self._observers.has_checks,
                self._recording.reduce,
            ),
            *loop.parts,  # optimizers end steps before observers see the end
            abort_hooks,
            observed,
            one_sided,
            Windows(one_sided),
            SymmetricMemory(one_sided, names),
            hot_path,
            native,
            groups,
            GroupCreation(self._runs),
            StandaloneBackendCreation(hot_path),
            Coalescing(groups, hot_path, find_group),
            Reconfigurations(groups, works, find_group),
            Dispatcher(hot_path, works, native, observed, schemas),
            devices,  # the last poll uses groups and plans of the native kernels
            works,
            agreements,
            self._rpc,  # remote calls end before operations
            ray_training(self._fail),
        ]
        self._recording.parts = [part for part in parts if part is not None]

    def on_tape(self, listener: Callable[[Recorder], None]) -> None:
        """Call `listener` with each new recorder, once its tape exists."""
        self._listeners.append(listener)

    def on_beat(self, listener: Callable[[], None]) -> None:
        """Call `listener` once a second, on the rank thread, while there is a tape."""
        self._beat_listeners.append(listener)

    def on_end(self, listener: Callable[[], None]) -> None:
        """Call `listener` at the end of the process, before the tape ends."""
        self._end_listeners.append(listener)

    def current_recorder(self) -> Recorder | None:
        """Return the current recorder, or None."""
        return self._recording.recorder

    @property
    def cuda_device(self) -> int | None:
        """Index of the CUDA device of the first operation on CUDA; None before it."""
        return self._devices.first_cuda

    # --- on and off ------------------------------------------------------------------------------------------

    def install(self) -> None:
        """Start recording. Existing groups are included, with sequence numbers marked as unaligned."""
        self._groups.mark_uncounted(known_groups())
        for part in self._recording.parts:
            part.hook(self._patches)
        os.register_at_fork(after_in_child=partial(_forget_in_child, weakref.ref(self)))
        self._recording.begins_tapes = True
        self._runs.begin_in_running_job()
        self._rpc.join_late()

    def uninstall(self) -> None:
        """Stop recording and restore everything that was patched."""
        self._recording.begins_tapes = False
        self._end.disarm()
        for part in reversed(self._recording.parts):
            part.unhook()
        self._patches.close()
        self._rank_thread.stop(timeout_s=2.0)
        self._pause.leave()
        self._runs.end()
        self._close(at_exit=False)

    def _at_end(self) -> None:
        """End the tape. Operations that other exit handlers issue afterwards are not recorded."""
        self._recording.begins_tapes = False
        self._rank_thread.stop(timeout_s=1.0)
        for listener in self._end_listeners:
            with guard.guarded("exit"):
                listener()
        error = uncaught_error()
        with guard.guarded("exit"):
            if error is None:
                self._runs.end()
            else:
                self._runs.end(TapeState.FAILED, describe_raised(error))
            self._close(at_exit=True)
            # Objects that the dispatcher's kernels refer to outlive Python. If they referred to patched functions of
            # torch, its groups would outlive Python, too: NCCL's would neither warn nor wait for a watchdog that is
            # about to end the process. Hooks stay, because other threads may be running them.
            self._patches.close()

    def _fail(self, error: BaseException) -> None:
        """End the run because of an exception that does not end this process."""
        self._runs.end(TapeState.FAILED, describe_raised(error))

    def _close(self, *, at_exit: bool) -> None:
        for part in reversed(self._recording.parts):
            part.close(at_exit=at_exit)

    # --- a tape ----------------------------------------------------------------------------------------------

    def _make_recorder(self, rank: int, world_size: int, world: str) -> Recorder:
        observers = self._observers
        return Recorder(
            self._directory(),
            max(rank, 0),  # a fake group may have neither a rank nor a size
            max(world_size, 1),
            self._capacity,
            self._library,
            observers is not None and observers.synchronizes,
            observers is not None and observers.checks_values(rank),
            world,
        )

    def _tape_begun(self, recorder: Recorder) -> None:
        for listener in self._listeners:
            with guard.guarded("new tape"):
                listener(recorder)
        self._rank_thread.start()  # after the listeners: its first beat is immediate and starts the agent
        self._end.arm()  # after the listeners: the tape is then finished before their final read

    def _check_pause(self) -> None:
        self._pause.check()
        if self._pause.is_on:
            self._rank_thread.start()  # it looks whether the pause is over

    def _beat(self) -> None:
        self._pause.check()
        if self._recording.recorder is None:
            return
        self._recording.beat()
        for listener in self._beat_listeners:
            with guard.guarded("beat"):
                listener()

    def after_fork_in_child(self) -> None:
        """Reset the session in a forked child.

        A child is not a rank until it creates its own group, and it never writes to its parent's tape.
        """
        self._rank_thread.forget_in_child()
        self._runs.forget_in_child()
        self._recording.forget_in_child()


def _forget_in_child(reference: weakref.ref[Capture]) -> None:
    capture = reference()
    if capture is not None:
        capture.after_fork_in_child()
