"""Encodes the timelines of all ranks as a Perfetto trace, piece by piece."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Final

from otel_torchdist.analysis.timeline.flows import RankFlows, flows_of
from otel_torchdist.analysis.timeline.packets import TrackWriter, clock_packet, process_packet, track_packet
from otel_torchdist.analysis.timeline.rank_timeline import DrawnSpan, DrawnStall, RankTimeline, lanes_of
from otel_torchdist.model.kinds import How
from otel_torchdist.model.names import SignatureName
from otel_torchdist.sources.history.call_kinds import CallKind
from otel_torchdist.sources.history.call_table import OPEN, UNKNOWN

MARK: Final = "written by otel_torchdist"
"""Identifies traces of this package. It is in the first bytes of each file."""


def _end(how: How) -> str:
    match how:
        case How.CALL:
            return "the call returned"
        case How.WAIT:
            return "a wait returned"
        case How.CALLBACK:
            return "its future completed"
        case How.POLL:
            return "polled"
        case How.EVENT:
            return "device event"
        case How.WATCHDOG:
            return "seen by the watchdog"
        case How.UNTRACKED:
            return "unknown: enqueued on a device"
        case How.ABANDONED:
            return "unknown: its Work was dropped"
        case How.FAILED:
            return "raised"


_ENDS: Final = {0: "open; drawn up to the last sign of life"} | {int(how): _end(how) for how in How}


class TraceWriter:
    """Encodes the timelines of all ranks."""

    def __init__(
        self, ranks: Sequence[RankTimeline], stall: DrawnStall | None, description: str, moment_ns: int = 0
    ) -> None:
        """Prepare a trace.

        Args:
            ranks: The drawings, by ascending rank.
            stall: The stall to mark; None if there is none.
            description: Notes that apply to all ranks, such as the alignment of clocks.
            moment_ns: Open slices end at this time or later, on ranks whose last sign of life is unknown.
        """
        self._ranks = ranks
        self._stall = stall
        self._description = description
        self._newest_ns = max([moment_ns, *(rank.newest_ns for rank in ranks)])
        self._tracks = count(2)

    def pieces(self) -> Iterator[bytes]:
        """Encode the trace in pieces of one or more packets."""
        yield track_packet(1, 0, MARK, 0)
        yield clock_packet(_oldest_ns(self._ranks))
        for rank, flows in zip(self._ranks, flows_of(self._ranks, self._stall), strict=True):
            yield from self._rank(rank, flows)

    def _rank(self, rank: RankTimeline, flows: RankFlows) -> Iterator[bytes]:
        process = next(self._tracks)
        host = rank.calls.host
        name = f"rank {rank.rank} on {host}" if host else f"rank {rank.rank}"
        yield process_packet(process, rank.rank, name, self._description)
        until_ns = rank.until_ns or self._newest_ns
        places = count()
        if self._stall is not None and rank.rank in (*self._stall.blamed, *self._stall.waiting):
            yield from self._marked(self._stall, rank, flows, process, next(places))
        tracks = (("steps", rank.steps), ("activities", rank.activities), ("checkpoints", rank.checkpoints))
        for title, spans in tracks:
            if spans:
                yield from self._spans(title, spans, process, next(places), until_ns)
        for title, members in rank.groups.items():
            group = next(self._tracks)
            yield track_packet(group, process, title, next(places))
            lanes = lanes_of(members, rank.calls.started, rank.calls.ended)
            for nth, lane in enumerate(lanes):
                track = next(self._tracks)
                yield track_packet(track, group, f"lane {nth + 1}", nth)
                yield from _lane(TrackWriter(track, track, rank.calls.started[lane[0]]), rank, lane, flows, until_ns)

    def _marked(
        self, stall: DrawnStall, rank: RankTimeline, flows: RankFlows, process: int, place: int
    ) -> Iterator[bytes]:
        track = next(self._tracks)
        yield track_packet(track, process, "incident", place)
        at_ns = stall.since_ns + rank.shift_ns
        writer = TrackWriter(track, track, at_ns)
        yield writer.head
        role = "holds the job up" if rank.rank in stall.blamed else "waits"
        content = writer.name("stall") + writer.text("verdict", stall.text) + writer.text("this rank", role)
        yield writer.instant(at_ns, content, flows.incident)

    def _spans(
        self, title: str, spans: Sequence[DrawnSpan], process: int, place: int, until_ns: int
    ) -> Iterator[bytes]:
        begin = [span.begin_ns for span in spans]
        parent = next(self._tracks)
        yield track_packet(parent, process, title, place)
        for nth, lane in enumerate(lanes_of(range(len(spans)), begin, [span.end_ns for span in spans])):
            track = next(self._tracks)
            yield track_packet(track, parent, f"lane {nth + 1}", nth)
            writer = TrackWriter(track, track, begin[lane[0]])
            yield writer.head
            for index in lane:
                span = spans[index]
                yield writer.begin(span.begin_ns, writer.name(span.name) + writer.number("step", span.step))
                yield writer.end(_end_ns(span.begin_ns, span.end_ns, until_ns))


def _lane(writer: TrackWriter, rank: RankTimeline, lane: list[int], flows: RankFlows, until_ns: int) -> Iterator[bytes]:
    calls = rank.calls
    shared: dict[tuple[int, int], bytes] = {}
    parts = [writer.head]
    for index in lane:
        kind, how, wait_ns = calls.kind[index], calls.how[index], rank.waits[index]
        content = shared.get((kind, how))
        if content is None:
            content = shared[kind, how] = _shared(writer, calls.kinds[kind], how)
        content += writer.number("sequence", calls.sequence[index]) + writer.number("step", calls.step[index])
        if wait_ns != UNKNOWN:
            content += writer.number("wait ns", wait_ns)
        begin_ns = calls.started[index]
        parts.append(writer.begin(begin_ns, content, flows.leaving.get(index, ())))
        parts.append(writer.end(_end_ns(begin_ns, calls.ended[index], until_ns), flows.arriving.get(index, ())))
    yield b"".join(parts)


def _shared(writer: TrackWriter, kind: CallKind, how: int) -> bytes:
    """Encode the content shared by calls of one kind that ended in the same way."""
    signature = kind.signature
    parts = [writer.name(kind.operation if how else f"{kind.operation} (open)")]
    if kind.site is not None:
        parts.append(writer.site(kind.site))
    texts = {
        "group": kind.group.label if kind.group is not None else "",
        "shapes": _shapes(signature) if signature is not None else "",
        "dtype": ",".join(signature.dtypes) if signature is not None else "",
        "reduce op": signature.reduce_op if signature is not None else "",
        "label": kind.label,
        "failure": kind.failure,
        "end": _ENDS[how],
    }
    parts += [writer.text(name, value) for name, value in texts.items() if value]
    parts.append(writer.number("bytes", kind.message_bytes))
    if kind.peer >= 0:
        parts.append(writer.number("peer", kind.peer))
    return b"".join(parts)


def _shapes(signature: SignatureName) -> str:
    """Return the shapes of tensors: `[128,1024] [8]`."""
    shapes = " ".join(f"[{','.join(map(str, shape))}]" for shape in signature.shapes)
    more = signature.tensors - len(signature.shapes)
    return f"{shapes} and {more} more" if shapes and more > 0 else shapes


def _end_ns(begin_ns: int, end_ns: int, until_ns: int) -> int:
    return max(begin_ns, until_ns if end_ns == OPEN else end_ns)


def _oldest_ns(ranks: Sequence[RankTimeline]) -> int:
    times = [time for rank in ranks for time in (*rank.calls.started[:1], *(span.begin_ns for span in rank.steps[:1]))]
    return max(min(times, default=0), 0)
