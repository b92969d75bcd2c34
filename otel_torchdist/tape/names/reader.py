"""The reading side of a tape's dictionary: follows the file, and looks up names."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePath
from typing import Final

from otel_torchdist.model.names import (
    MAX_BYTES,
    OTHER,
    CallerName,
    CallPathName,
    CallSiteName,
    GroupName,
    LabelName,
    Name,
    ParameterNames,
    RaisedName,
    SignatureName,
)
from otel_torchdist.system.files.others import is_gone, read_part, reason
from otel_torchdist.tape.layout import MAIN_CALLER, NO_CALLER
from otel_torchdist.tape.names.decoding import decode_line

_logger = logging.getLogger("otel_torchdist")
MAIN_THREAD: Final = "MainThread"
"""Caller name of the main thread, as named by Python."""
_MAX_READ: Final = 4 * MAX_BYTES
"""Upper bound on the bytes read from one dictionary. Otherwise a forged, endless line would be read at each refresh."""


class Names:
    """Names by id. The id `OTHER` has no name.

    Attributes:
        renamed: Number of updates that replaced names. A group is renamed when a device mesh uses it.
    """

    def __init__(self, names: Mapping[int, Name] | None = None) -> None:
        """Start with some names."""
        self.renamed = 0
        self._names: dict[int, Name] = {}
        self._callers: dict[int, str] = {MAIN_CALLER: MAIN_THREAD}
        self._caller_ids: dict[int, int] = {}
        self.update(names or {})

    def update(self, names: Mapping[int, Name]) -> None:
        """Add names, or replace them."""
        if not self._names.keys().isdisjoint(names):
            self.renamed += 1
        self._names.update(names)
        callers = {identity: name for identity, name in names.items() if isinstance(name, CallerName)}
        self._callers.update({name.number: name.function for name in callers.values()})
        self._caller_ids.update({name.number: identity for identity, name in callers.items()})

    @property
    def count(self) -> int:
        """Number of names."""
        return len(self._names)

    def get(self, identity: int) -> Name | None:
        """Return the name with this id, of any kind; None if unknown."""
        return self._names.get(identity)

    def group(self, identity: int) -> GroupName | None:
        """Return the process group with this id; None if unknown."""
        name = self.get(identity)
        return name if isinstance(name, GroupName) else None

    def group_ids(self) -> list[int]:
        """Return the ids of all process groups, in the order of writing."""
        return [identity for identity, name in self._names.items() if isinstance(name, GroupName)]

    def signature(self, identity: int) -> SignatureName | None:
        """Return the signature with this id; None if unknown."""
        name = self.get(identity)
        return name if isinstance(name, SignatureName) else None

    def call_site(self, identity: int) -> CallSiteName | None:
        """Return the call site with this id, or at the end of the call path with this id; None if unknown."""
        name = self.get(self.site_id(identity))
        return name if isinstance(name, CallSiteName) else None

    def site_id(self, identity: int) -> int:
        """Return the id of a call path's call site; any other id unchanged."""
        name = self.get(identity)
        return name.call_site if isinstance(name, CallPathName) else identity

    def call_path(self, identity: int) -> CallPathName | None:
        """Return the call path with this id; None if unknown."""
        name = self.get(identity)
        return name if isinstance(name, CallPathName) else None

    def path_ids(self, identity: int) -> tuple[int, ...]:
        """Return the ids of the names in a call path; empty for other ids."""
        path = self.call_path(identity)
        return () if path is None else (path.call_site, *path.frames)

    def callers(self, identity: int) -> tuple[CallSiteName, ...]:
        """Return the user's frames of a call path, innermost first, or only the call site with this id."""
        names = map(self.get, self.path_ids(identity) or (identity,))
        return tuple(name for name in names if isinstance(name, CallSiteName))

    def caller(self, number: int) -> str:
        """Return the function run by the threads with this caller number; '' if unknown."""
        return self._callers.get(number, "")

    def caller_id(self, number: int) -> int:
        """Return the name id of the threads with this caller number; `OTHER` if unknown."""
        return self._caller_ids.get(number, OTHER)

    def parameters(self, identity: int) -> tuple[str, ...]:
        """Return the parameter names with this id; empty if unknown."""
        name = self.get(identity)
        return name.names if isinstance(name, ParameterNames) else ()

    def label_name(self, identity: int) -> LabelName | None:
        """Return the label with this id, set by a library for parallel training; None for other ids."""
        name = self.get(identity)
        return name if isinstance(name, LabelName) else None

    def label(self, identity: int, piece: int = 0) -> str | None:
        """Return the text of a label, set by a library for parallel training or `record_comm`; None if unknown."""
        name = self.get(identity)
        return name.text(piece) if isinstance(name, LabelName) else self.text(identity)

    def text(self, identity: int) -> str | None:
        """Return the text or exception type with this id; None if unknown."""
        name = self.get(identity)
        if isinstance(name, RaisedName):
            return name.type
        return name if isinstance(name, str) else None

    def raised(self, identity: int) -> RaisedName | None:
        """Return the exception with this id; None if unknown, or if only its type is known."""
        name = self.get(identity)
        return name if isinstance(name, RaisedName) else None


class NamesReader(Names):
    """Follows a dictionary file. Unreadable names are unknown; they raise no error."""

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
        self._budget = _MAX_READ
        self._size = 0
        self._has_warned = False
        self.corrupt_lines = 0

    @property
    def bytes_read(self) -> int:
        """Bytes of the lines read so far."""
        return self._offset

    def refresh(self) -> None:
        """Read the lines appended since the last call."""
        if self._budget <= 0:
            return
        try:
            status = os.stat(self._path, follow_symlinks=False)
            if status.st_size <= self._size and stat.S_ISREG(status.st_mode):
                return
            chunk = read_part(self._path, self._offset, MAX_BYTES + 1, self._owner)
        except OSError as error:
            if not is_gone(error) and not self._has_warned:
                self._has_warned = True
                why = reason(error)
                _logger.warning("%s cannot be read (%s): the names in its rank's records are unknown", self._path, why)
            return
        self._budget -= len(chunk)
        self._size = self._offset + len(chunk)
        complete, newline, _ = chunk.rpartition(b"\n")
        self._offset += len(complete) + len(newline)
        for line in complete.split(b"\n") if newline else ():
            decoded = decode_line(line)
            if decoded is None:
                self.corrupt_lines += 1
                continue
            self.update({decoded[0]: decoded[1]})

    def caller(self, number: int) -> str:
        """Return the function run by the threads with this caller number; refresh first if unknown."""
        if number != NO_CALLER and not super().caller(number):
            self.refresh()
        return super().caller(number)

    def get(self, identity: int) -> Name | None:
        """Return the name with this id; refresh first if unknown."""
        if identity == OTHER:
            return None
        if identity not in self._names:
            self.refresh()
        return self._names.get(identity)


def shown_path(names: Names, identity: int) -> tuple[str, ...]:
    """Return the frames that led to a call, innermost first; empty if unknown.

    Args:
        names: The dictionary.
        identity: Name id of the call path.

    Returns:
        `train.py:42 step` for a line of the program, `… lightning, torch …` for frames of libraries.
    """
    return tuple(_texts(names, names.path_ids(identity)))


def _texts(names: Names, frames: tuple[int, ...]) -> Iterator[str]:
    for identity in frames:
        name = names.get(identity)
        if isinstance(name, CallSiteName):
            yield f"{PurePath(name.file).name}:{name.line} {name.function}"
        elif isinstance(name, str):
            yield name
