"""Encodes packets of Perfetto's trace format by hand, because the generated protobuf classes are slow.

Each track is a separate packet sequence. Its number, clock and names are declared once, and each time is relative to
the previous packet, as in the traces of Perfetto's SDK.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from otel_torchdist.model.names import CallSiteName
from otel_torchdist.telemetry.protobuf import block, fixed64, number, text, varint

BOOTTIME: Final = 6
"""Perfetto's main clock."""
REALTIME: Final = 1
_INCREMENTAL: Final = 64
"""Id of a clock that belongs to one sequence."""
_CLEARED, _NEEDED = 1, 2
"""Flags of a packet sequence: its interned names start afresh; a packet refers to interned names."""
_BEGIN: Final = number(9, 1)
_END: Final = number(9, 2)
_INSTANT: Final = number(9, 3)


def packet(content: bytes) -> bytes:
    """Encode a packet of a trace."""
    return block(1, content)


def clock_packet(at_ns: int) -> bytes:
    """Declare that Perfetto's main clock is the time since the epoch in this trace."""
    clocks = b"".join(block(1, number(1, clock) + number(2, at_ns)) for clock in (BOOTTIME, REALTIME))
    return packet(number(8, at_ns) + block(6, clocks + number(2, BOOTTIME)) + number(10, 1))


def process_packet(uuid: int, rank: int, name: str, description: str) -> bytes:
    """Declare the track of a rank. Perfetto reserves process 0, so the process id is the rank plus 1."""
    process = number(1, rank + 1) + text(6, name)
    descriptor = number(1, uuid) + block(3, process) + text(14, description) + number(12, rank)
    return packet(block(60, descriptor) + number(10, 1))


def track_packet(uuid: int, parent: int, name: str, place: int) -> bytes:
    """Declare a child track that keeps its place and is not merged with other tracks of the same name."""
    descriptor = number(1, uuid) + number(5, parent) + text(2, name)
    descriptor += number(11, 3) + number(12, place) + number(15, 2)
    return packet(block(60, descriptor) + number(10, 1))


class TrackWriter:
    """Encodes the events of one track, in order of time."""

    def __init__(self, sequence: int, track: int, begin_ns: int) -> None:
        """Begin a track.

        Args:
            sequence: Number of the packet sequence, above 1.
            track: Number of the track.
            begin_ns: Time of the first event, or earlier.
        """
        self._newest_ns = begin_ns
        self._events: dict[str, int] = {}
        self._arguments: dict[str, int] = {}
        self._texts: dict[str, int] = {}
        self._sites: dict[CallSiteName, int] = {}
        self._new: list[bytes] = []
        self._tail = number(10, sequence) + number(13, _NEEDED)
        clocks = block(1, number(1, BOOTTIME) + number(2, begin_ns))
        clocks += block(1, number(1, _INCREMENTAL) + number(2, 0) + number(3, 1))
        defaults = number(58, _INCREMENTAL) + block(11, number(11, track))
        self.head = packet(number(10, sequence) + number(13, _CLEARED) + block(6, clocks) + block(59, defaults))

    def begin(self, at_ns: int, content: bytes, flows: Iterable[int] = ()) -> bytes:
        """Begin a slice. `content` is encoded by `name` and the methods below."""
        return self._event(at_ns, _BEGIN + content + b"".join(fixed64(47, flow) for flow in flows))

    def end(self, at_ns: int, flows: Iterable[int] = ()) -> bytes:
        """End the slice that began last."""
        return self._event(at_ns, _END + b"".join(fixed64(48, flow) for flow in flows))

    def instant(self, at_ns: int, content: bytes, flows: Iterable[int] = ()) -> bytes:
        """Mark a moment."""
        return self._event(at_ns, _INSTANT + content + b"".join(fixed64(47, flow) for flow in flows))

    def name(self, name: str) -> bytes:
        """Encode the name of an event."""
        return number(10, self._interned(2, self._events, name))

    def site(self, site: CallSiteName) -> bytes:
        """Encode the call site of an event."""
        iid = self._sites.get(site)
        if iid is None:
            iid = self._sites[site] = len(self._sites) + 1
            where = text(2, site.file) + text(3, site.function) + number(4, max(site.line, 0) & 0xFFFFFFFF)
            self._new.append(block(4, number(1, iid) + where))
        return number(34, iid)

    def text(self, argument: str, value: str) -> bytes:
        """Encode a text argument."""
        iid = self._texts.get(value)
        if iid is None:
            iid = self._texts[value] = len(self._texts) + 1
            self._new.append(block(29, number(1, iid) + text(2, value)))
        return block(4, self._argument(argument) + number(17, iid))

    def number(self, argument: str, value: int) -> bytes:
        """Encode a number argument."""
        return block(4, self._argument(argument) + number(4, value))

    def _argument(self, name: str) -> bytes:
        return number(1, self._interned(3, self._arguments, name))

    def _interned(self, field: int, known: dict[str, int], name: str) -> int:
        iid = known.get(name)
        if iid is None:
            iid = known[name] = len(known) + 1
            self._new.append(block(field, number(1, iid) + text(2, name)))
        return iid

    def _event(self, at_ns: int, event: bytes) -> bytes:
        content = b"\x40" + varint(at_ns - self._newest_ns) + self._tail + block(11, event)
        self._newest_ns = at_ns
        if self._new:
            content += block(12, b"".join(self._new))
            self._new.clear()
        return packet(content)
