"""The reading side of the dictionary beside a tape. What it hands out is of our own types, and can be shown."""

from __future__ import annotations

import logging
import os
import stat
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from msgspec import Meta

from otel_torchdist.tape.decoding import CallSiteRead, DecodingError, decode_json, shown_site
from otel_torchdist.tape.names import MAX_BYTES, MAX_NAMES, MAX_TEXT, OTHER, Name
from otel_torchdist.tape.others_files import is_gone, read_part, reason
from otel_torchdist.tape.records import CallSiteName, GroupName, SignatureName
from otel_torchdist.tape.text import readable

_logger = logging.getLogger("otel_torchdist")

_MAX_READ: Final = 4 * MAX_BYTES
"""Bytes that are read of one dictionary in all: a line that never ends would be read again and again."""

_Number = Annotated[int, Meta(ge=0, le=1 << 53)]
_Rank = Annotated[int, Meta(ge=0, le=1 << 31)]


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


@dataclass(frozen=True, slots=True)
class _Signature:
    operation: str
    reduce_op: str
    shapes: tuple[tuple[_Number, ...], ...]
    dtypes: tuple[str, ...]
    device: str
    tensors: _Number


@dataclass(frozen=True, slots=True)
class _Line:
    id: Annotated[int, Meta(gt=OTHER, le=MAX_NAMES)]
    text: str | None = None
    group: _Group | None = None
    signature: _Signature | None = None
    call_site: CallSiteRead | None = None


class NamesReader:
    """Follows a dictionary file. Never raises for what the file contains: what cannot be read is not known."""

    def __init__(self, path: Path, owner: int | None = None) -> None:
        """Follow a file that may not exist yet.

        Args:
            path: The file.
            owner: The user to whom it must belong; None for any.
        """
        self._path = path
        self._owner = owner
        self._offset = 0
        self._names: dict[int, Name] = {}
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
                _logger.warning("%s cannot be read (%s): what its rank calls is not known", self._path, why)
            return
        self._left -= len(chunk)
        self._size = self._offset + len(chunk)
        complete, newline, _ = chunk.rpartition(b"\n")
        self._offset += len(complete) + len(newline)
        for line in complete.split(b"\n") if newline else ():
            decoded = _decode(line)
            if decoded is None:
                self.corrupt_lines += 1
                continue
            self._names[decoded[0]] = decoded[1]

    def _get(self, identity: int) -> Name | None:
        if identity == OTHER:
            return None
        if identity not in self._names:
            self.refresh()
        return self._names.get(identity)

    def group(self, identity: int) -> GroupName | None:
        """The process group with this id."""
        name = self._get(identity)
        return name if isinstance(name, GroupName) else None

    def signature(self, identity: int) -> SignatureName | None:
        """The signature with this id."""
        name = self._get(identity)
        return name if isinstance(name, SignatureName) else None

    def call_site(self, identity: int) -> CallSiteName | None:
        """The call site with this id."""
        name = self._get(identity)
        return name if isinstance(name, CallSiteName) else None

    def text(self, identity: int) -> str | None:
        """The label or exception type with this id."""
        name = self._get(identity)
        return name if isinstance(name, str) else None


def _decode(line: bytes) -> tuple[int, Name] | None:
    try:
        if int(line[:8], 16) != zlib.crc32(line[9:]):
            return None
        found = decode_json(line[9:], _Line)
    except (ValueError, DecodingError):
        return None
    name = _name(found)
    return None if name is None else (found.id, name)


def _name(line: _Line) -> Name | None:
    """What a line says, as text that can be shown and numbers that can be."""
    if line.text is not None:
        return readable(line.text, MAX_TEXT)
    if line.group is not None:
        group = line.group
        name, description, backend = readable(group.name), readable(group.description), readable(group.backend)
        device = readable(group.device)
        return GroupName(name, description, group.ranks, group.nth, backend, group.aligned, group.epoch, device)
    if line.signature is not None:
        one = line.signature
        dtypes = tuple(map(readable, one.dtypes))
        operation, reduce_op, device = readable(one.operation), readable(one.reduce_op), readable(one.device)
        return SignatureName(operation, reduce_op, one.shapes, dtypes, device, one.tensors)
    return None if line.call_site is None else shown_site(line.call_site)
