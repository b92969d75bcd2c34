"""How far one rank has advanced in each channel, kept up to date operation by operation.

What is shown of it is immutable. A busy rank enters thousands of operations between two passes, and most of them in the
same few channels: so the state of a channel changes in place, and is frozen once for each poll in which it changed.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from otel_torchdist.model.calls import MAX_RECENT, MAX_THREADS, Arrival, Channel, Progress
from otel_torchdist.model.ends import ASSUMED
from otel_torchdist.model.kinds import Flag
from otel_torchdist.model.operations import Operation

MAX_CHANNELS: Final = 65_536
"""Tags create channels without bound; beyond this the oldest quarter is forgotten."""

_UNSEEN: Final = (*ASSUMED, None)
"""How an end is recorded that was only assumed."""
_POINT_TO_POINT: Final = int(Flag.POINT_TO_POINT)
"""A plain integer: arithmetic with enum members is several times slower."""
_NEVER: Final = Progress()


class ChannelProgress:
    """The progress of one rank in all its channels.

    Attributes:
        has_forgotten: Whether channels were forgotten because there were too many.
    """

    def __init__(self) -> None:
        self.has_forgotten = False
        self._known: dict[Channel, Progress] = {}
        self._changing: dict[Channel, _Changing] = {}
        self._shown: Mapping[Channel, Progress] | None = None

    def entered(self, channel: Channel, operation: Operation, arrival: Arrival, aligned: bool, losses: int) -> None:
        """Count an operation that was entered; the arguments are fields of `Progress`."""
        state = self._changing.get(channel) or self._change(channel, self._known.get(channel, _NEVER))
        state.entered = max(state.entered, operation.sequence)
        state.aligned = aligned
        state.losses = losses
        state.recent.append(arrival)
        if operation.thread not in state.threads:
            state.threads = (*state.threads[1 - MAX_THREADS :], operation.thread)
        if arrival.caller and arrival.caller not in state.callers:
            state.callers = (*state.callers[1 - MAX_THREADS :], arrival.caller)

    def ended(self, channel: Channel, operation: Operation) -> None:
        """Count an operation that has ended and did not raise."""
        state = self._known_state(channel)
        if state is None:
            return
        sequence = operation.sequence
        # An operation that raised in the same channel meanwhile may have lowered it.
        state.entered = max(state.entered, sequence)
        state.completed = max(state.completed, sequence)
        if state.failed == sequence:
            state.failed = 0
        if operation.how not in _UNSEEN:
            state.seen_out = max(state.seen_out, sequence)
            state.seen_out_ns = max(state.seen_out_ns, operation.completed_ns or 0)

    def failed(self, channel: Channel, operation: Operation, failure: str) -> None:
        """Count an operation that raised an exception of type `failure`."""
        state = self._known_state(channel)
        if state is None:
            return
        if operation.returned_ns is None and not int(operation.flags) & _POINT_TO_POINT:
            # It raised before it was issued, and capture gives its number to the next operation.
            state.entered = min(state.entered, operation.sequence - 1)
        else:
            state.entered = max(state.entered, operation.sequence)
        state.failed = operation.sequence
        state.failure = failure

    def _known_state(self, channel: Channel) -> _Changing | None:
        state = self._changing.get(channel)
        if state is not None:
            return state
        known = self._known.get(channel)
        return None if known is None else self._change(channel, known)

    def _change(self, channel: Channel, known: Progress) -> _Changing:
        state = self._changing[channel] = _Changing(known)
        return state

    def settle(self) -> None:
        """Freeze what has changed; called after each poll of the tape."""
        if not self._changing:
            return
        for channel, state in self._changing.items():
            self._known[channel] = state.frozen()
        self._changing.clear()
        self._shown = None
        if len(self._known) > MAX_CHANNELS:
            self._forget()

    def _forget(self) -> None:
        for channel in list(itertools.islice(self._known, MAX_CHANNELS // 4)):
            if channel.is_point_to_point:
                del self._known[channel]
        self.has_forgotten = True

    @property
    def count(self) -> int:
        """Number of channels whose progress is known."""
        return len(self._known)

    @property
    def shown(self) -> Mapping[Channel, Progress]:
        """The progress in each channel as of the last `settle`; the same object until it changes."""
        if self._shown is None:
            self._shown = MappingProxyType(dict(self._known))
        return self._shown


class _Changing:
    """A `Progress` that changes."""

    __slots__ = (
        "aligned", "callers", "completed", "entered", "failed", "failure", "losses", "recent", "seen_out",
        "seen_out_ns", "threads",
    )  # fmt: skip

    def __init__(self, known: Progress) -> None:
        self.entered, self.completed, self.failed, self.failure = known[:4]
        self.aligned, self.losses = known.aligned, known.losses
        self.recent = deque(known.recent, MAX_RECENT)
        self.threads, self.callers = known.threads, known.callers
        self.seen_out, self.seen_out_ns = known.seen_out, known.seen_out_ns

    def frozen(self) -> Progress:
        return Progress(
            self.entered,
            self.completed,
            self.failed,
            self.failure,
            self.aligned,
            self.losses,
            tuple(self.recent),
            self.threads,
            self.seen_out,
            self.seen_out_ns,
            self.callers,
        )
