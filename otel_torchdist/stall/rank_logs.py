"""What one rank has called and when it came there, of all its groups: for comparison with other ranks."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from otel_torchdist.stall.arrival_log import ArrivalLog
from otel_torchdist.stall.call_log import MAX_WINDOWS, CallLog, Digests
from otel_torchdist.stall.world import Arrival, Lane, TimedWindow, Window
from otel_torchdist.tape.layout import Flag, How
from otel_torchdist.tape.records import Operation

MAX_LANES: Final = 64
"""Groups of a rank whose calls are kept; each takes some 30 kB."""
_ON_DEVICE: Final = int(Flag.ON_DEVICE)


class RankLogs:
    """Both logs of every lane.

    Attributes:
        windows: What was called, by lane; replaced whenever there is more.
        arrivals: When the rank came there, likewise.
    """

    def __init__(self) -> None:
        """Nothing has been called."""
        self._calls: dict[Lane, CallLog] = {}
        self._on_device: dict[Lane, ArrivalLog] = {}
        self._digests = Digests()
        self._all_windows: Mapping[Lane, tuple[Window, ...]] | None = None
        self.windows: Mapping[Lane, tuple[Window, ...]] = MappingProxyType({})
        self.arrivals: Mapping[Lane, tuple[TimedWindow, ...]] = MappingProxyType({})

    def entered(self, lane: Lane, arrival: Arrival, operation: Operation) -> None:
        """Take in a collective."""
        self._all_windows = None
        log = self._calls.get(lane)
        if log is None:
            if len(self._calls) >= MAX_LANES:
                return
            log = self._calls[lane] = CallLog()
        if not log.entered(arrival, operation.entered_ns, self._digests):
            return
        self.windows = MappingProxyType({**self.windows, lane: log.windows})
        # When it was enqueued says nothing about when the device came to it.
        if log.times is not None and not int(operation.flags) & _ON_DEVICE:
            before = self.arrivals.get(lane, ())
            self.arrivals = MappingProxyType({**self.arrivals, lane: (*before[1 - MAX_WINDOWS :], log.times)})

    @property
    def all_windows(self) -> Mapping[Lane, tuple[Window, ...]]:
        """What was called, with the calls since the last complete windows."""
        if self._all_windows is None:
            unfinished = {lane: log.unfinished(self._digests) for lane, log in self._calls.items()}
            last = {lane: (*self.windows.get(lane, ()), one) for lane, one in unfinished.items() if one is not None}
            self._all_windows = MappingProxyType({**self.windows, **last})
        return self._all_windows

    def ended_on_device(self, lane: Lane, operation: Operation) -> None:
        """Take in the end of a collective on a device."""
        if operation.started_ns is None or lane not in self._calls or operation.how is How.FAILED:
            return
        log = self._on_device.get(lane)
        if log is None:
            log = self._on_device[lane] = ArrivalLog()
        if log.ended(operation.sequence, operation.started_ns):
            self.arrivals = MappingProxyType({**self.arrivals, lane: log.windows})
