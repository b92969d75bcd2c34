"""The runs of this process. A default group, a world made by hand, or RPC begins and ends a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_torchdist.capture.core.groups.worlds import PlaceInWorld, world_of
from otel_torchdist.capture.core.run.agreements import RPC_RUN
from otel_torchdist.capture.core.torch_api import backend_and_store
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
        self._is_of_rpc = False

    def end(self, state: TapeState = TapeState.FINISHED, failure: RaisedName | None = None) -> None:
        """End the run, if there is one; see `RunRecording.end`."""
        self._is_of_rpc = False
        self._recording.end(state, failure)

    # --- groups ----------------------------------------------------------------------------------------------

    def default_group_begins(self, rank: int, world_size: int, world: str = "") -> Recorder | None:
        """Begin a tape and end the previous one. A tape that RPC has begun for this rank continues.

        Args:
            rank: This rank.
            world_size: Number of ranks.
            world: As in `TapeIdentity`.
        """
        current = self._recording.recorder
        if self._is_of_rpc and current is not None and current.is_of(rank, world_size):
            return current
        self.end()
        return self._recording.begin(rank, world_size, world)

    def world_begins(self, place: PlaceInWorld, world_size: int) -> Recorder | None:
        """Record a world that is made by hand with the current recorder: this process stays in its other worlds.

        Without a recorder, begin a tape with the rank in this world.
        """
        recorder = self._recording.recorder
        if recorder is None:
            recorder = self.default_group_begins(place.rank, world_size, place.world)
            if recorder is not None:
                self._agreements.agree(recorder, None)
        if recorder is not None:
            recorder.worlds.add(place.world)
        return recorder

    def place_of(self, group: ProcessGroup) -> PlaceInWorld:
        """Return the world of a group, and this process's place in it."""
        state = self._groups.find(group)
        return PlaceInWorld(state.name.world, state.name.here) if state is not None else world_of(group)

    def current_recorder(self) -> Recorder | None:
        """Return the current recorder, or None."""
        return self._recording.recorder

    def group_created(self, group: ProcessGroup, rendezvous: Rendezvous) -> None:
        """Register a group whose creation was observed."""
        recorder = rendezvous.recorder
        if recorder is not None and self._groups.find(group) is None:
            self._groups.learn(
                recorder, group, rendezvous.ranks, rendezvous.nth, place=rendezvous.place, address=rendezvous.address
            )
            self._abort_hooks.attach(recorder, group)

    def default_group_set(self, group: ProcessGroup | None) -> None:
        """Register the default group and agree on the run id, or end the tape if the group was destroyed."""
        if group is None:
            if self._is_of_rpc:  # the tape continues
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
        state = self.find_group(group)
        recorder = self._recording.recorder
        if recorder is None or state is None:
            return
        state.become_default()
        self._groups.default = state
        if not self._is_of_rpc:
            self._agreements.agree(recorder, backend_and_store(group)[1])

    def find_group(self, group: ProcessGroup) -> GroupState | None:
        """Return the state of a group. Register it if it existed before capture was installed or is otherwise new."""
        state = self._groups.find(group)
        if state is not None:
            return state
        place = world_of(group)
        if place.is_by_hand:
            recorder = self.world_begins(place, group.size())
        else:
            recorder = self._recording.recorder or self._lone_group_begins(group)
        if recorder is None:
            return None
        self._abort_hooks.attach(recorder, group)
        return self._groups.learn(recorder, group, place=place)

    def _lone_group_begins(self, group: ProcessGroup) -> Recorder | None:
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
                self._is_of_rpc = True
                self._agreements.agree(recorder, store, RPC_RUN)
        elif rank == 0 and not self._is_of_rpc:
            # Worker ids are not ranks: workers without a group are a separate run.
            self._agreements.set_for_others(recorder, store)
        return recorder

    def rpc_ended(self) -> None:
        """End the tape, unless a default group uses it."""
        is_of_rpc, self._is_of_rpc = self._is_of_rpc, False
        if is_of_rpc and self._groups.default is None:
            self.end()
