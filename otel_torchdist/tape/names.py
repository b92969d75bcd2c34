"""The dictionary beside a tape: strings are written once, and records carry their ids.

An append-only file of `crc32 json` lines, so that a reader can follow it and detect truncated lines. The reading side
returns our own types, with text that is safe to display.
"""

from __future__ import annotations

import json
import logging
import os
import stat
import threading
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias

from msgspec import Meta

from otel_torchdist import guard
from otel_torchdist.files.others import is_gone, read_part, reason
from otel_torchdist.naming import readable
from otel_torchdist.tape.decoding import CallSiteRead, DecodingError, decode_json, shown_site
from otel_torchdist.tape.records import (
    CallPathName,
    CallSiteName,
    GroupName,
    LabelKind,
    LabelName,
    ParameterNames,
    SignatureName,
)
from otel_torchdist.tape.timeouts import AtTimeout

Name: TypeAlias = GroupName | SignatureName | CallSiteName | CallPathName | LabelName | ParameterNames | str

OTHER: Final = 0
"""Id of an unknown name: never set, or beyond the limit."""
MAX_NAMES: Final = 8192
MAX_BYTES: Final = 4 << 20
SPARE_OF_SHAPES: Final = MAX_NAMES // 4
"""Ids that must stay free when a name with shapes is added: in some jobs these never repeat, and others matter more."""
SPARE_OF_GROUPS: Final = MAX_NAMES // 8
SPARE_OF_LABELS: Final = MAX_NAMES // 16
SPARE_OF_CALL_SITES: Final = MAX_NAMES // 32
MAX_TEXT: Final = 512
MAX_DIMENSIONS: Final = 16
MAX_FRAMES: Final = 64
"""Frames of a call path."""
MAX_PARAMETERS: Final = 4096
"""Parameters whose names are one name."""


class NamesWriter:
    """Gives each new name an id and appends it to the file before any record can carry the id.

    Attributes:
        max_bytes: Maximum size of the file.
        dropped: Names that became `OTHER`.
        is_scarce: Whether a name has been refused, for lack of room or to leave room for others.
    """

    def __init__(self, path: Path, max_bytes: int = MAX_BYTES) -> None:
        """Create the file, which must not exist yet and never exceeds `max_bytes`.

        Raises:
            OSError: The file cannot be created.
        """
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._ids: dict[Name, int] = {}
        self._next = 1
        self._bytes = 0
        self.max_bytes = max_bytes
        self._lock = threading.Lock()
        self.dropped = 0
        self.is_scarce = False

    def intern(self, name: Name, spare: int = 0) -> int:
        """Return the id of a name; `OTHER`, counted as dropped, once the dictionary is full or cannot be written.

        Args:
            name: The name.
            spare: How many ids must stay free for other names.
        """
        identity = self.find_room(name, spare)
        if identity == OTHER:
            self.dropped += 1
        return identity

    def find_room(self, name: Name, spare: int) -> int:
        """Return the id of a dispensable name as `intern` does, but do not count `OTHER` as dropped."""
        known = self._ids.get(name)
        if known is not None:
            return known
        with self._lock:
            return self._ids.get(name) or self._append(name, spare)

    def replace(self, identity: int, name: Name, spare: int = 0) -> None:
        """Give an id another name from now on; does nothing if there is no room.

        Args:
            identity: The id.
            name: The name.
            spare: As for `intern`.
        """
        with self._lock:
            line = encode_line(identity, name)
            if identity != OTHER and len(line) <= self._room(spare) and self._write(line):
                self._bytes += len(line)
                self._ids[name] = identity

    def _room(self, spare: int) -> int:
        """How many bytes a name may take."""
        return self.max_bytes - spare * (self.max_bytes // MAX_NAMES) - self._bytes

    def _append(self, name: Name, spare: int) -> int:
        identity = self._next
        room = self._room(spare)
        if identity > MAX_NAMES - spare or room <= 0:
            self.is_scarce = True
            return OTHER
        line = encode_line(identity, name)
        if len(line) > room or not self._write(line):
            self.is_scarce = True
            return OTHER
        self._bytes += len(line)
        self._next += 1
        self._ids[name] = identity
        return identity

    def _write(self, line: bytes) -> bool:
        try:
            if os.write(self._file, line) == len(line):
                return True
            os.ftruncate(self._file, self._bytes)  # a truncated line would corrupt the next one too
        except OSError as error:
            guard.pass_on(error)  # a TimeoutError of the program is an OSError, too
        return False

    def close(self) -> None:
        """Close the file; later names become `OTHER`."""
        with self._lock:
            if self._file >= 0:
                os.close(self._file)
            self._file = -1


_KINDS: Final[dict[str, type[GroupName | SignatureName | CallSiteName | CallPathName | LabelName | ParameterNames]]] = {
    "group": GroupName,
    "signature": SignatureName,
    "call_site": CallSiteName,
    "call_path": CallPathName,
    "parameters": ParameterNames,
    "label": LabelName,
}


def encode_line(identity: int, name: Name) -> bytes:
    """Return the line of a name, with its newline."""
    if isinstance(name, str):
        body: dict[str, Any] = {"id": identity, "text": name[:MAX_TEXT]}
    else:
        kind = next(kind for kind, cls in _KINDS.items() if isinstance(name, cls))
        # `dataclasses.asdict` would copy a group's thousands of ranks one by one.
        body = {"id": identity, kind: {field: getattr(name, field) for field in name.__slots__}}
    text = json.dumps(body, separators=(",", ":"), default=_value_of).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


def _value_of(member: Any) -> Any:
    return member.value  # of an enum: there is nothing else that JSON lacks


_logger = logging.getLogger("otel_torchdist")

_MAX_READ: Final = 4 * MAX_BYTES
"""Total bytes read from one dictionary: an endless line would otherwise be read over and over."""

_Number = Annotated[int, Meta(ge=0, le=1 << 53)]
_Rank = Annotated[int, Meta(ge=0, le=1 << 31)]
_Identity = Annotated[int, Meta(gt=OTHER, le=MAX_NAMES)]


@dataclass(frozen=True, slots=True)
class _Group:
    name: str
    description: str
    ranks: tuple[_Rank, ...]
    nth: _Number
    backend: str
    aligned: bool
    epoch: int = -1
    device: str = ""
    timeout_ms: _Number = 0
    at_timeout: AtTimeout = AtTimeout.UNKNOWN
    dimensions: Annotated[tuple[str, ...], Meta(max_length=MAX_DIMENSIONS)] = ()


@dataclass(frozen=True, slots=True)
class _Signature:
    operation: str
    reduce_op: str
    shapes: tuple[tuple[_Number, ...], ...]
    dtypes: tuple[str, ...]
    device: str
    tensors: _Number


@dataclass(frozen=True, slots=True)
class _CallPath:
    call_site: _Identity
    frames: Annotated[tuple[_Identity, ...], Meta(max_length=MAX_FRAMES)]
    varies: bool


@dataclass(frozen=True, slots=True)
class _Parameters:
    names: Annotated[tuple[str, ...], Meta(max_length=MAX_PARAMETERS)]


@dataclass(frozen=True, slots=True)
class _Label:
    kind: LabelKind
    unit: str
    stage: Annotated[int, Meta(ge=-1, le=1 << 31)]
    direction: str


@dataclass(frozen=True, slots=True)
class _Line:
    id: _Identity
    text: str | None = None
    group: _Group | None = None
    signature: _Signature | None = None
    call_site: CallSiteRead | None = None
    call_path: _CallPath | None = None
    parameters: _Parameters | None = None
    label: _Label | None = None


class Names:
    """Names by their ids; `OTHER` is the id of none.

    Attributes:
        renamed: Counts how often names have been replaced: that of a group is when a device mesh takes it.
    """

    def __init__(self, names: Mapping[int, Name] | None = None) -> None:
        """Start with some names."""
        self.renamed = 0
        self._names: dict[int, Name] = {}
        self._paths: dict[int, int] = {}
        self.update(names or {})

    def update(self, names: Mapping[int, Name]) -> None:
        """Add names, or replace them."""
        if not self._names.keys().isdisjoint(names):
            self.renamed += 1
        self._names.update(names)
        self._paths.update({name.call_site: one for one, name in names.items() if isinstance(name, CallPathName)})

    def get(self, identity: int) -> Name | None:
        """Return the name with this id, of whatever kind."""
        return self._names.get(identity)

    def group(self, identity: int) -> GroupName | None:
        """Return the process group with this id."""
        name = self.get(identity)
        return name if isinstance(name, GroupName) else None

    def group_ids(self) -> list[int]:
        """Return the ids of all process groups, in the order in which they were written."""
        return [identity for identity, name in self._names.items() if isinstance(name, GroupName)]

    def signature(self, identity: int) -> SignatureName | None:
        """Return the signature with this id."""
        name = self.get(identity)
        return name if isinstance(name, SignatureName) else None

    def call_site(self, identity: int) -> CallSiteName | None:
        """Return the call site with this id."""
        name = self.get(identity)
        return name if isinstance(name, CallSiteName) else None

    def call_path(self, call_site: int) -> CallPathName | None:
        """Return what has led to a call site, as far as that is known."""
        self.get(call_site)  # a reader may come to it only now, and finds its path beside it
        name = self.get(self._paths.get(call_site, OTHER))
        return name if isinstance(name, CallPathName) else None

    def path_ids(self, call_site: int) -> tuple[int, ...]:
        """Return the ids of a call site's path and of the frames in it; empty if it is not known."""
        path = self.call_path(call_site)
        return () if path is None else (self._paths[call_site], *path.frames)

    def parameters(self, identity: int) -> tuple[str, ...]:
        """Return the names of parameters with this id; empty if they are not known."""
        name = self.get(identity)
        return name.names if isinstance(name, ParameterNames) else ()

    def label_name(self, identity: int) -> LabelName | None:
        """Return what calls of a library for parallel training with this label are for."""
        name = self.get(identity)
        return name if isinstance(name, LabelName) else None

    def label(self, identity: int, piece: int = 0) -> str | None:
        """Return the label with this id in words: that of a library for parallel training, or of `record_comm`."""
        name = self.get(identity)
        return name.text(piece) if isinstance(name, LabelName) else self.text(identity)

    def text(self, identity: int) -> str | None:
        """Return the label or exception type with this id."""
        name = self.get(identity)
        return name if isinstance(name, str) else None


class NamesReader(Names):
    """Follows a dictionary file. Never raises because of the file's content: unreadable names are unknown."""

    def __init__(self, path: Path, owner: int | None = None) -> None:
        """Follow a file that may not exist yet.

        Args:
            path: The file.
            owner: The user who must own it; None for any.
        """
        super().__init__()
        self._path = path
        self._owner = owner
        self._offset = 0
        self._left = _MAX_READ
        self._size = 0
        self._has_warned = False
        self.corrupt_lines = 0

    def refresh(self) -> None:
        """Read what has been appended since the last call."""
        if self._left <= 0:
            return
        try:
            facts = os.stat(self._path, follow_symlinks=False)
            if facts.st_size <= self._size and stat.S_ISREG(facts.st_mode):
                return
            chunk = read_part(self._path, self._offset, MAX_BYTES + 1, self._owner)
        except OSError as error:
            if not is_gone(error) and not self._has_warned:
                self._has_warned = True
                why = reason(error)
                _logger.warning("%s cannot be read (%s): the names of what its rank calls are unknown", self._path, why)
            return
        self._left -= len(chunk)
        self._size = self._offset + len(chunk)
        complete, newline, _ = chunk.rpartition(b"\n")
        self._offset += len(complete) + len(newline)
        for line in complete.split(b"\n") if newline else ():
            decoded = decode_line(line)
            if decoded is None:
                self.corrupt_lines += 1
                continue
            self.update({decoded[0]: decoded[1]})

    def get(self, identity: int) -> Name | None:
        """Return the name with this id, after another look at the file if it is not known yet."""
        if identity == OTHER:
            return None
        if identity not in self._names:
            self.refresh()
        return self._names.get(identity)


def decode_line(line: bytes) -> tuple[int, Name] | None:
    """Return id and name of a line without its newline, safe to display; None if it is damaged."""
    try:
        if int(line[:8], 16) != zlib.crc32(line[9:]):
            return None
        found = decode_json(line[9:], _Line)
    except (ValueError, DecodingError):
        return None
    name = _name(found)
    return None if name is None else (found.id, name)


def _name(line: _Line) -> Name | None:
    """Convert a decoded line to a name whose text is safe to display."""
    if line.text is not None:
        return readable(line.text, MAX_TEXT)
    if line.group is not None:
        group = line.group
        name, description, backend = readable(group.name), readable(group.description), readable(group.backend)
        return GroupName(
            name,
            description,
            group.ranks,
            group.nth,
            backend,
            group.aligned,
            group.epoch,
            readable(group.device),
            group.timeout_ms,
            group.at_timeout,
            tuple(map(readable, group.dimensions)),
        )
    if line.signature is not None:
        one = line.signature
        dtypes = tuple(map(readable, one.dtypes))
        operation, reduce_op, device = readable(one.operation), readable(one.reduce_op), readable(one.device)
        return SignatureName(operation, reduce_op, one.shapes, dtypes, device, one.tensors)
    if line.label is not None:
        label = line.label
        return LabelName(label.kind, readable(label.unit), label.stage, readable(label.direction))
    if line.call_path is not None:
        return CallPathName(line.call_path.call_site, line.call_path.frames, line.call_path.varies)
    if line.parameters is not None:
        return ParameterNames(tuple(map(readable, line.parameters.names)))
    return None if line.call_site is None else shown_site(line.call_site)
