"""Reads a timeline with Perfetto's protobuf classes, and checks the rules that its UI relies on."""

from __future__ import annotations

import gzip
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as messages


@dataclass
class Slice:
    """A slice or an instant with resolved names."""

    path: tuple[str, ...]
    name: str
    begin: int
    end: int
    arguments: dict[str, Any]
    leaving: list[int] = field(default_factory=list[int])
    arriving: list[int] = field(default_factory=list[int])

    @property
    def rank(self) -> int:
        """The rank of the slice's process."""
        return int(self.path[0].split()[1])


@dataclass
class _Sequence:
    now: int
    track: int
    names: dict[str, dict[int, Any]] = field(default_factory=dict[str, dict[int, Any]])
    open: list[Slice] = field(default_factory=list[Slice])


class Timeline:
    """The slices of a trace."""

    def __init__(self, content: bytes) -> None:
        self.slices: list[Slice] = []
        self.descriptions: set[str] = set()
        self._tracks: dict[int, Any] = {}
        self._sequences: dict[int, _Sequence] = {}
        trace = messages.Trace.FromString(content)
        for packet in trace.packet:
            self._take(packet)
        assert not [left for sequence in self._sequences.values() for left in sequence.open], "begun, not ended"
        self._check_flows()

    @classmethod
    def of(cls, path: Path) -> Timeline:
        """Read a file."""
        content = path.read_bytes()
        return cls(gzip.decompress(content) if path.suffix == ".gz" else content)

    def named(self, name: str) -> list[Slice]:
        """Return the slices with a name, by begin."""
        return sorted((drawn for drawn in self.slices if drawn.name == name), key=lambda drawn: drawn.begin)

    def flows(self) -> list[tuple[Slice, Slice]]:
        """Return the first and the last slice of each flow."""
        starts = {flow: drawn for drawn in self.slices for flow in drawn.leaving}
        return [(starts[flow], drawn) for drawn in self.slices for flow in drawn.arriving]

    def _take(self, packet: Any) -> None:
        number = packet.trusted_packet_sequence_id
        assert number > 0
        if packet.HasField("track_descriptor"):
            descriptor = packet.track_descriptor
            assert descriptor.uuid not in self._tracks
            assert not descriptor.parent_uuid or descriptor.parent_uuid in self._tracks, "children after parents"
            self._tracks[descriptor.uuid] = descriptor
            self.descriptions |= {descriptor.description} - {""}
        if packet.HasField("trace_packet_defaults"):
            assert packet.sequence_flags == 1 and number not in self._sequences
            clocks = {clock.clock_id: clock for clock in packet.clock_snapshot.clocks}
            assert clocks[64].is_incremental and clocks[64].timestamp == 0
            assert packet.trace_packet_defaults.timestamp_clock_id == 64
            defaults = packet.trace_packet_defaults.track_event_defaults
            assert defaults.track_uuid in self._tracks
            self._sequences[number] = _Sequence(clocks[6].timestamp, defaults.track_uuid)
        if packet.HasField("track_event"):
            assert packet.sequence_flags == 2
            self._event(self._sequences[number], packet)

    def _event(self, sequence: _Sequence, packet: Any) -> None:
        assert packet.timestamp < 1 << 62, "time runs backwards"
        sequence.now += packet.timestamp
        for kind in ("event_names", "debug_annotation_names", "debug_annotation_string_values", "source_locations"):
            for entry in getattr(packet.interned_data, kind):
                assert sequence.names.setdefault(kind, {}).setdefault(entry.iid, entry) is entry, "declared twice"
        event = packet.track_event
        if event.type == event.TYPE_SLICE_END:
            ended = sequence.open.pop()
            ended.end = sequence.now
            ended.arriving = list(event.terminating_flow_ids)
            return
        name = sequence.names["event_names"][event.name_iid].name
        drawn = Slice(self._path(sequence.track), name, sequence.now, sequence.now, _arguments(sequence, event))
        drawn.leaving = list(event.flow_ids)
        self.slices.append(drawn)
        if event.type == event.TYPE_SLICE_BEGIN:
            assert not sequence.open, "lanes do not nest, they follow each other"
            sequence.open.append(drawn)

    def _path(self, track: int) -> tuple[str, ...]:
        path: list[str] = []
        while track:
            descriptor = self._tracks[track]
            path.insert(0, descriptor.process.process_name or descriptor.name)
            track = descriptor.parent_uuid
        return tuple(path)

    def _check_flows(self) -> None:
        leaving = [flow for drawn in self.slices for flow in drawn.leaving]
        arriving = [flow for drawn in self.slices for flow in drawn.arriving]
        assert len(set(leaving)) == len(leaving) and sorted(leaving) == sorted(arriving), "two ends each"
        assert all(start.begin < end.end and start.path != end.path for start, end in self.flows())


def _arguments(sequence: _Sequence, event: Any) -> dict[str, Any]:
    arguments: dict[str, Any] = {}
    for annotation in event.debug_annotations:
        name = sequence.names["debug_annotation_names"][annotation.name_iid].name
        is_text = annotation.WhichOneof("value") == "string_value_iid"
        texts = sequence.names.get("debug_annotation_string_values", {})
        arguments[name] = texts[annotation.string_value_iid].str.decode() if is_text else annotation.int_value
    if event.source_location_iid:
        site = sequence.names["source_locations"][event.source_location_iid]
        arguments["site"] = (site.function_name, site.file_name, site.line_number)
    return arguments


def ranks_in(slices: Iterable[Slice]) -> list[int]:
    """Return the ranks of slices, ascending."""
    return sorted({drawn.rank for drawn in slices})
