"""The agreements on run ids that are under way: that of the default group, and that of RPC's workers in no group."""

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
"""Key of the run id of workers in no group, in their store, which has a prefix of its own for each `init_rpc`."""


class Agreements(SessionPart):
    """Agrees on run ids, and ends what has not been agreed on with the tape."""

    def __init__(self, groups: Groups, exchange_host: str | None) -> None:
        """Agree on nothing yet.

        Args:
            groups: The process groups of this rank.
            exchange_host: As in `Capture`.
        """
        self._groups = groups
        self._exchange_host = exchange_host
        self._under_way: list[RunIdAgreement] = []

    def agree(self, recorder: Recorder, store: Any, key: str = "") -> None:
        """Agree on the run id of a tape with all that have its store; rank 0 has set it when this returns."""
        groups, everybody = self._groups, self._groups.default
        agreement = RunIdAgreement(
            recorder,
            store,
            has_met_rank_0=lambda: any(state.has_met(0) for state in groups.states()),
            has_met_all=lambda: everybody is not None and everybody.is_synchronized,
            discover_peers=self._peer_discovery_of(recorder),
            key=key,
        )
        self._under_way.append(agreement)

    def set_for_others(self, recorder: Recorder, store: Any) -> None:
        """Set the run id of RPC's workers in no group, which this rank is not one of."""
        self._under_way.append(RunIdAgreement(recorder, store, _never, _never, key=RPC_RUN, for_others=True))

    def stops(self, *, has_failed: bool) -> None:
        """Stop all that are under way."""
        with contextlib.suppress(IndexError):  # several if ranks are threads, which may also get here concurrently
            while True:
                self._under_way.pop().stop()

    def forget_in_child(self) -> None:
        """Forget them: this is a forked child."""
        self._under_way = []

    def _peer_discovery_of(self, recorder: Recorder) -> Callable[[threading.Event], PeerDiscovery] | None:
        identity = recorder.tape.identity
        if self._exchange_host is None or _is_only_node(identity.world_size):
            return None
        # Not imported before, to save memory.
        from otel_torchdist.capture.core.run.peer_discovery import PeerDiscovery, RankAddress

        address = RankAddress(identity.rank, identity.world_size, recorder.tape.path, self._exchange_host)
        return lambda stopping: PeerDiscovery(address, stopping)


def _is_only_node(world_size: int) -> bool:
    """Return whether the launcher has started all ranks on this node, where there is no other agent."""
    local = os.environ.get("LOCAL_WORLD_SIZE", "")
    return local.isdecimal() and int(local) >= world_size


def _never() -> bool:
    return False
