"""Decodes a dump from a pickle or JSON into the types of `flight.dump`, and validates every part."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, Final, cast

import msgspec
from msgspec import Meta

from otel_torchdist.errors import TorchDistError
from otel_torchdist.model.names import CallSiteName
from otel_torchdist.model.text import readable
from otel_torchdist.sources.flight.dump import EntryState, FlightDump, FlightEntry, FlightGroup, GroupStatus
from otel_torchdist.sources.flight.reading.pickles import MAX_OBJECTS, PickleError, load
from otel_torchdist.tape.layout import MAX_RANKS, MAX_TIME_NS

PICKLE: Final = b"\x80"
MAX_NAME: Final = 256
MAJOR: Final = 2
MAX_ENTRIES: Final = 1_000_000
MAX_PARTS: Final = 4_000_000
"""Upper bound on the shapes and frames of all entries. Shared objects count, and are decoded, each time."""
BATCH_ENTRIES: Final = 32
"""Entries converted in one call."""
OLDEST: Final = 3
"""The first minor version that numbers collectives separately from sends and receives."""
_VERSION: Final = re.compile(r"(\d{1,4})\.(\d{1,4})")
_RANKS: Final = re.compile(r"\s*(?:\[\s*)?(?:(\d{1,7}(?:\s*,\s*\d{1,7})*)\s*)?(?:\]\s*)?")
_Count = Annotated[int, Meta(ge=0, le=1 << 62)]
_Text = Annotated[str, Meta(max_length=4096)]
_Size = Annotated[int, Meta(ge=0, le=1 << 48)]
_Shape = Annotated[tuple[_Size, ...], Meta(max_length=16)]
_Shapes = Annotated[tuple[_Shape, ...], Meta(max_length=1 << 14)]
_Dtypes = Annotated[tuple[_Text, ...], Meta(max_length=1 << 14)]


class DumpError(TorchDistError):
    """A file is not a flight recorder dump, or is damaged; the message gives the reason."""


class NotADumpError(DumpError):
    """A file is intact, but not a flight recorder dump."""


class _Frame(msgspec.Struct, frozen=True, gc=False):
    name: _Text
    filename: _Text
    line: _Count = 0


class _Entry(msgspec.Struct, gc=False):
    record_id: _Count
    process_group: tuple[_Text, _Text]
    collective_seq_id: _Count
    profiling_name: _Text
    time_created_ns: _Count
    state: EntryState
    pg_id: _Count = 0
    p2p_seq_id: _Count = 0
    op_id: _Count = 0
    input_sizes: _Shapes = ()
    input_dtypes: _Dtypes = ()
    output_sizes: _Shapes = ()
    output_dtypes: _Dtypes = ()
    time_discovered_started_ns: _Count | None = None
    time_discovered_completed_ns: _Count | None = None
    duration_ms: float | None = None
    retired: bool = False
    timeout_ms: _Count | None = None
    is_p2p: bool = False
    thread_id: _Text = ""
    frames: Annotated[tuple[_Frame, ...], Meta(max_length=4096)] = ()


class _Group(msgspec.Struct, gc=False):
    name: _Text = ""
    desc: _Text = ""
    ranks: str = ""


class _Status(msgspec.Struct, gc=False):
    last_enqueued_collective: int = -1
    last_started_collective: int = -1
    last_completed_collective: int = -1


@dataclass(frozen=True, slots=True)
class DecodedDump:
    """A dump without its invalid parts.

    Attributes:
        dump: The valid parts.
        bad_parts: Number of entries, groups and group states left out as invalid.
        first_fault: The fault of the first of them; '' without any.
        rank: The rank stated in the file; None if not stated, as in PyTorch's own dumps.
    """

    dump: FlightDump
    bad_parts: int
    first_fault: str
    rank: int | None


@dataclass(slots=True)
class _Faults:
    """The invalid parts of a dump: their number, and the fault of the first."""

    count: int = 0
    first: str = ""

    def note(self, fault: str) -> None:
        self.first = self.first or fault
        self.count += 1


def decode(content: bytes, rank: int, path: str) -> DecodedDump:
    """Decode a dump of any supported version, as a pickle or JSON.

    Args:
        content: The whole file.
        rank: The rank that wrote it.
        path: Path of the file, for reports.

    Raises:
        DumpError: The content is not a supported dump, or damaged.
    """
    document = _document(content)
    if not isinstance(document, dict):
        raise NotADumpError("it is not a dump of a flight recorder")
    return decode_document(cast(dict[Any, Any], document), rank, path)


def decode_document(document: Mapping[Any, Any], rank: int, path: str) -> DecodedDump:
    """Decode an unpickled or parsed dump; see `decode`."""
    version = _VERSION.fullmatch(version_text) if isinstance(version_text := document.get("version"), str) else None
    if version is None or not ("entries" in document or "pg_config" in document):
        raise NotADumpError("it is not a dump of a flight recorder")
    if int(version[1]) != MAJOR or int(version[2]) < OLDEST:
        raise DumpError(f"its format is {version[0]}, which is not supported: {MAJOR}.{OLDEST} and later ones are")
    faults = _Faults()
    groups = {
        _short(key): _group(group)
        for key, value in _items(document.get("pg_config"))
        if (group := _converted(value, _Group, f"group {key!r}", faults)) is not None and isinstance(key, str)
    }
    statuses = {
        int(key): GroupStatus(
            status.last_enqueued_collective, status.last_started_collective, status.last_completed_collective
        )
        for key, value in _items(document.get("pg_status"))
        if isinstance(key, str)
        and key.isdecimal()
        and len(key) < 10
        and (status := _converted(value, _Status, f"the state of group {key}", faults)) is not None
    }
    library = document.get("comm_lib_version") or document.get("nccl_version")
    stated_rank, until_ns = document.get("rank"), document.get("until_ns")
    dump = FlightDump(
        rank=rank,
        path=path,
        version=(int(version[1]), int(version[2])),
        library_version=_short(library) if isinstance(library, str) else "",
        groups=groups,
        statuses=statuses,
        entries=_entries(document.get("entries"), faults),
        until_ns=until_ns if type(until_ns) is int and 0 < until_ns <= MAX_TIME_NS else None,
    )
    is_rank = type(stated_rank) is int and 0 <= stated_rank < MAX_RANKS
    return DecodedDump(dump, faults.count, faults.first, stated_rank if is_rank else None)


def _document(content: bytes) -> Any:
    if content.startswith(PICKLE):
        try:
            return load(content)
        except PickleError as error:
            raise DumpError(str(error)) from error
    if not content:
        raise DumpError("it is empty")
    if content.lstrip()[:1] != b"{":
        raise NotADumpError("it is neither a pickle nor JSON")
    if content.count(b"[") + content.count(b"{") > MAX_OBJECTS:
        raise DumpError("it holds too many objects")
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise DumpError(f"it is damaged ({type(error).__name__})") from error


def _items(part: Any) -> list[tuple[Any, Any]]:
    return list(cast(dict[Any, Any], part).items()) if isinstance(part, dict) else []


def _converted(value: Any, kind: type[Any], label: str, faults: _Faults) -> Any:
    try:
        return msgspec.convert(value, kind, strict=False)
    except (msgspec.ValidationError, RecursionError, ValueError) as error:
        faults.note(f"{readable(label, MAX_NAME)}: {readable(str(error), MAX_NAME)}")
        return None


def _entries(part: Any, faults: _Faults) -> tuple[FlightEntry, ...]:
    if part is None:
        return ()  # JSON dumps omit an empty list
    if not isinstance(part, list):
        raise DumpError("its entries are not a list")
    values = cast(list[Any], part)
    if len(values) > MAX_ENTRIES:
        raise DumpError("it holds too many objects")
    entries: dict[int, FlightEntry] = {}
    parts = 0
    for first in range(0, len(values), BATCH_ENTRIES):
        for nth, raw in _raw_entries(values[first : first + BATCH_ENTRIES], first, faults):
            parts += len(raw.input_sizes) + len(raw.output_sizes) + len(raw.frames)
            if raw.record_id in entries:
                faults.note(f"entry {nth}: record {raw.record_id} is duplicated")
            entries[raw.record_id] = _entry(raw)
        if parts > MAX_PARTS:
            raise DumpError("it holds too many objects")
    return tuple(entries[number] for number in sorted(entries))


def _raw_entries(values: list[Any], first: int, faults: _Faults) -> Iterator[tuple[int, _Entry]]:
    """Convert entries: all at once if all are valid, otherwise one by one."""
    try:
        yield from enumerate(msgspec.convert(values, list[_Entry]), first)
        return
    except (msgspec.ValidationError, RecursionError, ValueError):
        pass
    for nth, value in enumerate(values, first):
        try:
            raw = msgspec.convert(value, _Entry)
        except (msgspec.ValidationError, RecursionError, ValueError) as error:
            faults.note(f"entry {nth}: {readable(str(error), MAX_NAME)}")
        else:
            yield nth, raw


def _entry(raw: _Entry) -> FlightEntry:
    group, description = raw.process_group
    # Positional arguments: keywords take 1.5 times as long, for thousands of entries.
    return FlightEntry(
        raw.record_id,
        raw.pg_id,
        _short(group),
        _short(description),
        raw.collective_seq_id,
        raw.p2p_seq_id,
        raw.op_id,
        _short(raw.profiling_name),
        raw.time_created_ns,
        raw.time_discovered_started_ns or None,  # JSON has 0 for None
        raw.time_discovered_completed_ns or None,
        raw.duration_ms,
        raw.state,
        raw.retired,
        raw.input_sizes,
        raw.input_dtypes,
        raw.output_sizes,
        raw.output_dtypes,
        raw.timeout_ms or None,
        raw.is_p2p,
        raw.thread_id,
        tuple(map(_call_site, raw.frames)) if raw.frames else (),
    )


def _group(raw: _Group) -> FlightGroup:
    return FlightGroup(_short(raw.name), _short(raw.desc), _ranks(raw.ranks) if raw.name else ())


@lru_cache(maxsize=1_024)
def _ranks(text: str) -> tuple[int, ...]:
    """Return the ranks in a text like `[0, 1]`, or `0,1` of torchcomms; none for any other text.

    gloo's recorder has a single unnamed group, with the ranks within the group that was created last.
    """
    match = _RANKS.fullmatch(text)
    if match is None or not match[1]:
        return ()
    ranks = {int(rank) for rank in match[1].split(",")}
    return tuple(sorted(ranks)) if max(ranks) < MAX_RANKS else ()


@lru_cache(maxsize=16_384)
def _call_site(frame: _Frame) -> CallSiteName:
    return CallSiteName(readable(frame.name), readable(frame.filename), frame.line)


@lru_cache(maxsize=16_384)
def _short(text: str) -> str:
    return readable(text, MAX_NAME)
