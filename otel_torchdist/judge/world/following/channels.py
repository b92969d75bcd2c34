"""The calls and the progress of one rank in each channel."""

from __future__ import annotations

import itertools
import zlib
from collections import deque
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from otel_torchdist.judge.world.mismatch import comparable
from otel_torchdist.model.calls import MAX_RECENT, MAX_THREADS, Arrival, Channel, Progress, TimedWindow, Window
from otel_torchdist.model.kinds import Flag, How
from otel_torchdist.model.operations import ASSUMED, Operation

# --- progress ---------------------------------------------------------------------------------------------------------
# The progress of one rank in each channel, updated with each operation and immutable once shown. A busy rank enters
# thousands of operations between two passes, most of them in the same few channels. So the state of a channel changes
# in place, and is frozen once for each poll in which it changed.


MAX_CHANNELS: Final = 65_536
"""Maximum number of channels. Tags create channels without bound; beyond this limit the oldest quarter is forgotten."""

_UNSEEN: Final = (*ASSUMED, None)
"""Values of `Operation.how` for ends that were assumed, not observed."""
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
        """Count an entered operation. The arguments are fields of `Progress`."""
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
        """Count an operation that ended without raising."""
        state = self._known_state(channel)
        if state is None:
            return
        sequence = operation.sequence
        # An operation of the same channel that raised meanwhile may have lowered `entered`.
        state.entered = max(state.entered, sequence)
        state.completed = max(state.completed, sequence)
        if state.failed == sequence:
            state.failed = 0
        if operation.how not in _UNSEEN:
            state.end_observed = max(state.end_observed, sequence)
            state.end_observed_ns = max(state.end_observed_ns, operation.completed_ns or 0)

    def failed(self, channel: Channel, operation: Operation, failure: str) -> None:
        """Count an operation that raised an exception of type `failure`."""
        state = self._known_state(channel)
        if state is None:
            return
        if operation.returned_ns is None and not int(operation.flags) & _POINT_TO_POINT:
            # The call raised before the operation was issued. Capture gives its number to the next operation.
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
        """Freeze the changes. Call this after each poll of the tape."""
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
    """A mutable `Progress`."""

    __slots__ = (
        "aligned",
        "callers",
        "completed",
        "end_observed",
        "end_observed_ns",
        "entered",
        "failed",
        "failure",
        "losses",
        "recent",
        "threads",
    )  # fmt: skip

    def __init__(self, known: Progress) -> None:
        self.entered, self.completed, self.failed, self.failure = known[:4]
        self.aligned, self.losses = known.aligned, known.losses
        self.recent = deque(known.recent, MAX_RECENT)
        self.threads, self.callers = known.threads, known.callers
        self.end_observed, self.end_observed_ns = known.end_observed, known.end_observed_ns

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
            self.end_observed,
            self.end_observed_ns,
            self.callers,
        )


# --- calls ------------------------------------------------------------------------------------------------------------
# The calls of one rank in all its groups, with arrival times, for comparison with other ranks. Ranks are never read at
# exactly the same moment, and thousands of calls may pass between two reads. So each 64 calls of a channel form a
# window with one digest, and the last few windows are kept. Ranks that made the same calls have the same digests; where
# digests differ, the calls themselves are still available.
# The time at which a rank's device reached a call is known only after the call has ended.


MAX_LOGGED_CHANNELS: Final = 64
"""Maximum number of a rank's groups with a call log. Each log takes about 30 kB."""
_ON_DEVICE: Final = int(Flag.ON_DEVICE)


class RankLogs:
    """The call logs and arrival logs of a rank, by channel.

    Attributes:
        windows: Complete windows of calls by channel. A new window replaces the mapping.
        arrivals: Complete windows of arrival times by channel. A new window replaces the mapping.
    """

    def __init__(self) -> None:
        self._calls: dict[Channel, CallLog] = {}
        self._on_device: dict[Channel, ArrivalLog] = {}
        self._digests = Digests()
        self._all_windows: Mapping[Channel, tuple[Window, ...]] | None = None
        self.windows: Mapping[Channel, tuple[Window, ...]] = MappingProxyType({})
        self.arrivals: Mapping[Channel, tuple[TimedWindow, ...]] = MappingProxyType({})

    def entered(self, channel: Channel, arrival: Arrival, operation: Operation) -> None:
        """Record a collective that was entered."""
        self._all_windows = None
        log = self._calls.get(channel)
        if log is None:
            if len(self._calls) >= MAX_LOGGED_CHANNELS:
                return
            log = self._calls[channel] = CallLog()
        if not log.entered(arrival, operation.entered_ns, self._digests):
            return
        self.windows = MappingProxyType({**self.windows, channel: log.windows})
        # The enqueue time does not show when the device reached the call.
        if log.times is not None and not int(operation.flags) & _ON_DEVICE:
            before = self.arrivals.get(channel, ())
            self.arrivals = MappingProxyType({**self.arrivals, channel: (*before[1 - MAX_WINDOWS :], log.times)})

    @property
    def all_windows(self) -> Mapping[Channel, tuple[Window, ...]]:
        """The windows of calls, including the calls since the last complete ones."""
        if self._all_windows is None:
            unfinished = {channel: log.unfinished(self._digests) for channel, log in self._calls.items()}
            last = {
                channel: (*self.windows.get(channel, ()), window)
                for channel, window in unfinished.items()
                if window is not None
            }
            self._all_windows = MappingProxyType({**self.windows, **last})
        return self._all_windows

    def ended_on_device(self, channel: Channel, operation: Operation) -> None:
        """Record the end of a collective on a device."""
        if operation.started_ns is None or channel not in self._calls or operation.how is How.FAILED:
            return
        log = self._on_device.get(channel)
        if log is None:
            log = self._on_device[channel] = ArrivalLog()
        if log.ended(operation.sequence, operation.started_ns):
            self.arrivals = MappingProxyType({**self.arrivals, channel: log.windows})


LENGTH: Final = 64
MAX_WINDOWS: Final = 4
MAX_DIGESTS: Final = 4_096


class CallLog:
    """The calls of one rank in one channel.

    Attributes:
        windows: The latest complete windows.
        times: Entry times of the calls in the newest window.
    """

    __slots__ = ("_arrivals", "_next", "_times", "times", "windows")

    def __init__(self) -> None:
        self._arrivals: list[Arrival] = []
        self._next = 1
        self._times: list[int] = []
        self.windows: tuple[Window, ...] = ()
        self.times: TimedWindow | None = None

    def entered(self, arrival: Arrival, at_ns: int, digests: Digests) -> bool:
        """Record a call. Return whether it completes a window."""
        sequence = arrival.sequence
        if sequence != self._next and not self._resumes_at(sequence):
            return False
        self._next = sequence + 1
        self._arrivals.append(arrival)
        self._times.append(at_ns)
        if len(self._arrivals) < LENGTH:
            return False
        arrivals, self._arrivals = tuple(self._arrivals), []
        times, self._times = tuple(self._times), []
        number = (sequence - 1) // LENGTH
        self.windows = (*self.windows[1 - MAX_WINDOWS :], Window(number, digests.of(arrivals), arrivals))
        self.times = TimedWindow(number, times)
        return True

    def unfinished(self, digests: Digests) -> Window | None:
        """Return the calls since the last complete window. At the end of a run, this window stays incomplete."""
        arrivals = tuple(self._arrivals)
        return Window((arrivals[0].sequence - 1) // LENGTH, digests.of(arrivals), arrivals) if arrivals else None

    def _resumes_at(self, sequence: int) -> bool:
        """Return whether a window can be recorded from `sequence` on after a gap (lost records, a refused call)."""
        offset = (sequence - 1) % LENGTH
        if not self._next - len(self._arrivals) <= sequence < self._next:
            offset = 0 if offset == 0 else -1
        if offset < 0:
            self._next = 0
            self._arrivals, self._times = [], []
            return False
        del self._arrivals[offset:], self._times[offset:]
        return True


class Digests:
    """Digests of calls, equal for equal calls in every process."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, int], bytes] = {}

    def of(self, arrivals: tuple[Arrival, ...]) -> int:
        """Return the digest of a window."""
        return zlib.crc32(b"".join(map(self._text, arrivals)))

    def _text(self, arrival: Arrival) -> bytes:
        key = (arrival.signature, arrival.root)
        text = self._known.get(key)
        if text is None:
            if len(self._known) >= MAX_DIGESTS:
                self._known.clear()
            text = self._known[key] = zlib.crc32(repr(comparable(arrival)).encode()).to_bytes(4, "little")
        return text


MAX_PARTIAL: Final = 2
"""Maximum number of incomplete windows. Asynchronous calls may end out of order."""


class ArrivalLog:
    """The arrival times of one rank in one channel, recorded as the calls end.

    Attributes:
        windows: The latest complete windows.
    """

    __slots__ = ("_partial", "windows")

    def __init__(self) -> None:
        self._partial: dict[int, list[int]] = {}
        self.windows: tuple[TimedWindow, ...] = ()

    def ended(self, sequence: int, arrived_ns: int) -> bool:
        """Record an ended call. Return whether it completes a window."""
        number = (sequence - 1) // LENGTH
        times = self._partial.get(number)
        if times is None:
            if len(self._partial) >= MAX_PARTIAL:
                del self._partial[next(iter(self._partial))]
            times = self._partial[number] = []
        times.append(arrived_ns)
        if len(times) < LENGTH:
            return False
        del self._partial[number]
        # A rank arrives at its calls in order, even if they end out of order.
        self.windows = (*self.windows[1 - MAX_WINDOWS :], TimedWindow(number, tuple(sorted(times))))
        return True
