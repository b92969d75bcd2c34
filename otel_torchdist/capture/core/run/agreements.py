"""The pending agreements on run ids: of the default group, and of RPC workers without a group."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from otel_torchdist.capture.core.part import SessionPart
from otel_torchdist.capture.core.run.run_id import RunIdAgreement

if TYPE_CHECKING:
    from otel_torchdist.capture.core.groups.groups import Groups
    from otel_torchdist.capture.core.recorder import Recorder
    from otel_torchdist.capture.core.run.peer_discovery import PeerDiscovery

RPC_RUN: Final = "otel_torchdist/run/rpc"
"""Store key of the run id of RPC workers without a group. Their store has a new prefix for each `init_rpc`."""


class Agreements(SessionPart):
    """The pending agreements on run ids. They end with the tape."""

    def __init__(self, groups: Groups, exchange_host: str | None) -> None:
        """Initialize without agreements.

        Args:
            groups: The process groups of this rank.
            exchange_host: As in `Capture`.
        """
        self._groups = groups
        self._exchange_host = exchange_host
        self._pending: list[RunIdAgreement] = []

    def agree(self, recorder: Recorder, store: Any, key: str = "") -> None:
        """Agree on a tape's run id with all users of the store. Rank 0 has set the id when this returns."""
        groups, default = self._groups, self._groups.default
        agreement = RunIdAgreement(
            recorder,
            store,
            has_met_rank_0=lambda: any(state.has_met(0) for state in groups.states()),
            has_met_all=lambda: default is not None and default.is_synchronized,
            discover_peers=self._peer_discovery_of(recorder),
            key=key,
        )
        self._pending.append(agreement)

    def set_for_rpc_workers(self, recorder: Recorder, store: Any) -> None:
        """Set the run id for RPC workers without a group. This rank has a group."""
        self._pending.append(RunIdAgreement(recorder, store, _never, _never, key=RPC_RUN, for_other_run=True))

    def stops(self, *, has_failed: bool) -> None:
        """Stop all pending agreements."""
        with contextlib.suppress(IndexError):  # with ranks as threads, several threads may call this at once
            while True:
                self._pending.pop().stop()

    def forget_in_child(self) -> None:
        """Drop the agreements in a forked child."""
        self._pending = []

    def _peer_discovery_of(self, recorder: Recorder) -> Callable[[threading.Event], PeerDiscovery] | None:
        identity = recorder.tape.identity
        if self._exchange_host is None or _is_only_node(identity.world_size):
            return None
        # A late import, to save memory.
        from otel_torchdist.capture.core.run.peer_discovery import PeerDiscovery, RankAddress

        address = RankAddress(identity.rank, identity.world_size, recorder.tape.path, self._exchange_host)
        return lambda stopping: PeerDiscovery(address, stopping)


def _is_only_node(world_size: int) -> bool:
    """Return whether the launcher started all ranks on this node, so that no other agent exists."""
    local = os.environ.get("LOCAL_WORLD_SIZE", "")
    return local.isdecimal() and int(local) >= world_size


def _never() -> bool:
    return False
