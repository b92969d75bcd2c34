"""The runs of this process. A default group, a standalone process group, or RPC begins and ends a run."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import torch

from otel_torchdist.capture.core.groups.worlds import GroupWorld, world_of
from otel_torchdist.capture.core.run.agreements import RPC_RUN
from otel_torchdist.capture.core.torch_api import backend_and_store, default_group, known_groups
from otel_torchdist.model.kinds import TapeState

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from otel_torchdist.capture.core.groups.groups import Groups, GroupState
    from otel_torchdist.capture.core.groups.rendezvous import Rendezvous
    from otel_torchdist.capture.core.recorder import Recorder
    from otel_torchdist.capture.core.requests.abort import AbortHooks
    from otel_torchdist.capture.core.run.agreements import Agreements
    from otel_torchdist.capture.core.run.recording import RunRecording
    from otel_torchdist.model.names import RaisedName


class Runs:
    """The runs of this process. Receives group events, begins and ends tapes, and registers groups."""

    def __init__(
        self, recording: RunRecording, groups: Groups, agreements: Agreements, abort_hooks: AbortHooks
    ) -> None:
        """Initialize without a run.

        Args:
            recording: The tapes of this process.
            groups: The groups of this process.
            agreements: The agreements on run ids.
            abort_hooks: Attached to each group.
        """
        self._recording = recording
        self._groups = groups
        self._agreements = agreements
        self._abort_hooks = abort_hooks
        self._began_by_rpc = False
        self._is_resuming = False
        self._resumed = 0
        self._resuming = threading.RLock()

    def end(self, state: TapeState = TapeState.FINISHED, failure: RaisedName | None = None) -> None:
        """End the run, if there is one; see `RunRecording.end`."""
        self._began_by_rpc = False
        self._recording.end(state, failure)

    # --- on and off in a running job ----------------------------------------------------------------------------

    def switch_off(self) -> None:
        """End the run, although the program goes on. Called on our thread, which must not wait."""
        self._began_by_rpc = self._is_resuming = False
        self._recording.end(TapeState.FINISHED, is_hurried=True)

    def resume_with_next_call(self) -> None:
        """Begin a run with the next operation: torch's store is then used on a thread of the program."""
        self._is_resuming = True

    def begin_in_running_job(self, key: str = "") -> None:
        """Begin a run with the groups that exist, whose sequence numbers are marked as unaligned.

        Args:
            key: As in `Agreements.agree`.
        """
        existing = known_groups()
        self._groups.mark_uncounted(existing)
        if not torch.distributed.is_initialized():
            return
        default = default_group()
        self.default_group_begins(default.rank(), default.size())
        for group in existing:
            self._find_group(group)
        self.default_group_set(default, key)

    def _resume(self) -> None:
        with self._resuming:  # other threads wait for the tape
            if self._is_resuming:
                try:
                    if self._recording.recorder is None:
                        # A key of its own: on nodes that were never off, the next default group has the next key.
                        self._resumed += 1
                        self.begin_in_running_job(f"otel_torchdist/run/resumed/{self._resumed}")
                finally:
                    self._is_resuming = False

    def forget_in_child(self) -> None:
        """Replace the lock in a forked child: a thread of the parent may have held it."""
        self._resuming = threading.RLock()

    # --- groups ----------------------------------------------------------------------------------------------

    def default_group_begins(self, rank: int, world_size: int, world: str = "") -> Recorder | None:
        """Begin a tape and end the previous one. A tape that RPC has begun for this rank continues.

        Args:
            rank: This rank.
            world_size: Number of ranks.
            world: As in `TapeIdentity`.
        """
        current = self._recording.recorder
        if self._began_by_rpc and current is not None and current.belongs_to(rank, world_size):
            return current
        self.end()
        return self._recording.begin(rank, world_size, world)

    def standalone_group_begins(self, world: GroupWorld, world_size: int) -> Recorder | None:
        """Return the recorder for a standalone process group: the current one, because other groups remain in use.

        Without a current recorder, begin a tape with the rank in this world.
        """
        recorder = self._recording.recorder
        if recorder is None:
            recorder = self.default_group_begins(world.rank, world_size, world.name)
            if recorder is not None:
                self._agreements.agree(recorder, None)
        if recorder is not None:
            recorder.worlds.add(world.name)
        return recorder

    def world_of(self, group: ProcessGroup) -> GroupWorld:
        """Return the world of a group, and this process's rank in it."""
        state = self._groups.find(group)
        return GroupWorld(state.name.world, state.name.world_rank) if state is not None else world_of(group)

    def current_recorder(self) -> Recorder | None:
        """Return the current recorder, or None."""
        return self._recording.recorder

    def group_created(self, group: ProcessGroup, rendezvous: Rendezvous) -> None:
        """Register a group whose creation was observed."""
        recorder = rendezvous.recorder
        if recorder is not None and self._groups.find(group) is None:
            self._groups.register(
                recorder, group, rendezvous.ranks, rendezvous.nth, world=rendezvous.world, address=rendezvous.address
            )
            self._abort_hooks.attach(recorder, group)

    def default_group_set(self, group: ProcessGroup | None, key: str = "") -> None:
        """Register the default group and agree on the run id, or end the tape if the group was destroyed.

        Args:
            group: The group; None if it was destroyed.
            key: As in `Agreements.agree`.
        """
        if group is None:
            if self._began_by_rpc:  # the tape continues
                self._recording.leave_groups()
            else:
                self.end()
            return
        current = self._recording.recorder
        before = self._groups.default if current is not None else None
        if before is not None and before is self._groups.find(group):
            return
        if current is None or before is not None:  # created without our hooks, or replaces another default group
            self.default_group_begins(group.rank(), group.size())
            self._groups.count(group)
        state = self._find_group(group)
        recorder = self._recording.recorder
        if recorder is None or state is None:
            return
        state.become_default()
        self._groups.default = state
        if not self._began_by_rpc:
            self._agreements.agree(recorder, backend_and_store(group)[1], key)

    def find_group(self, group: ProcessGroup) -> GroupState | None:
        """Return the state of a group. Register it if it existed before capture was installed or is otherwise new."""
        if self._is_resuming:
            self._resume()
        return self._find_group(group)

    def _find_group(self, group: ProcessGroup) -> GroupState | None:
        state = self._groups.find(group)
        if state is not None or not self._recording.begins_tapes:
            return state
        world = world_of(group)
        if world.is_standalone:
            recorder = self.standalone_group_begins(world, group.size())
        else:
            recorder = self._recording.recorder or self._begin_run_of(group)
        if recorder is None:
            return None
        self._abort_hooks.attach(recorder, group)
        return self._groups.register(recorder, group, world=world)

    def _begin_run_of(self, group: ProcessGroup) -> Recorder | None:
        """Begin a run for the first group of a process without a default group, if its store is unknown."""
        recorder = self.default_group_begins(group.rank(), group.size())
        if recorder is not None:
            self._agreements.agree(recorder, None)
        return recorder

    # --- RPC -------------------------------------------------------------------------------------------------

    def rpc_begins(self, rank: int, world_size: int | None, store: Any) -> Recorder | None:
        """Return the recorder for a worker's calls: the current one, else the recorder of a new tape.

        Args:
            rank: The worker's id.
            world_size: Number of workers; None if it may change.
            store: The workers' store.
        """
        recorder = self._recording.recorder
        if recorder is None:
            recorder = self.default_group_begins(rank, world_size or rank + 1)
            if recorder is not None:
                self._began_by_rpc = True
                self._agreements.agree(recorder, store, RPC_RUN)
        elif rank == 0 and not self._began_by_rpc:
            # Worker ids are not ranks: workers without a group are a separate run.
            self._agreements.set_for_rpc_workers(recorder, store)
        return recorder

    def rpc_ended(self) -> None:
        """End the tape, unless a default group uses it."""
        began_by_rpc, self._began_by_rpc = self._began_by_rpc, False
        if began_by_rpc and self._groups.default is None:
            self.end()
