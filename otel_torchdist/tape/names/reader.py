"""The reading side of the dictionary beside a tape: follows the file, and looks names up."""

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
"""The main thread among callers, which Python calls so."""
_MAX_READ: Final = 4 * MAX_BYTES
"""Total bytes read from one dictionary: an endless line would otherwise be read over and over."""


class Names:
    """Names by their ids; `OTHER` is the id of none.

    Attributes:
        renamed: Counts how often names have been replaced: that of a group is when a device mesh takes it.
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
        """Return the call site that this id stands for, by itself or as the end of a path."""
        name = self.get(self.site_id(identity))
        return name if isinstance(name, CallSiteName) else None

    def site_id(self, identity: int) -> int:
        """Return the id of the call site alone, which is the same however it is reached."""
        name = self.get(identity)
        return name.call_site if isinstance(name, CallPathName) else identity

    def call_path(self, identity: int) -> CallPathName | None:
        """Return the path with this id."""
        name = self.get(identity)
        return name if isinstance(name, CallPathName) else None

    def path_ids(self, identity: int) -> tuple[int, ...]:
        """Return the ids of the names that a path refers to; empty if it is none."""
        path = self.call_path(identity)
        return () if path is None else (path.call_site, *path.frames)

    def callers(self, identity: int) -> tuple[CallSiteName, ...]:
        """Return the user's frames of a path, innermost first, or the call site with this id alone."""
        found = (self.get(one) for one in self.path_ids(identity) or (identity,))
        return tuple(name for name in found if isinstance(name, CallSiteName))

    def caller(self, number: int) -> str:
        """Return what the threads with this number run; '' if it is not known."""
        return self._callers.get(number, "")

    def caller_id(self, number: int) -> int:
        """Return the id of the name of the threads with this number; `OTHER` if it has none."""
        return self._caller_ids.get(number, OTHER)

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
        if isinstance(name, RaisedName):
            return name.type
        return name if isinstance(name, str) else None

    def raised(self, identity: int) -> RaisedName | None:
        """Return the exception with this id, if more is known of it than its type."""
        name = self.get(identity)
        return name if isinstance(name, RaisedName) else None


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

    @property
    def bytes_read(self) -> int:
        """Bytes of the lines read so far."""
        return self._offset

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

    def caller(self, number: int) -> str:
        """Return what the threads with this number run, after another look at the file if it is not known yet."""
        if number != NO_CALLER and not super().caller(number):
            self.refresh()
        return super().caller(number)

    def get(self, identity: int) -> Name | None:
        """Return the name with this id, after another look at the file if it is not known yet."""
        if identity == OTHER:
            return None
        if identity not in self._names:
            self.refresh()
        return self._names.get(identity)


def shown_path(names: Names, identity: int) -> tuple[str, ...]:
    """Return the frames that led to a call, innermost first; empty if they are not known.

    Args:
        names: The dictionary.
        identity: Name id of the path.

    Returns:
        `train.py:42 step` for a line of the program, `… lightning, torch …` for the frames of libraries.
    """
    return tuple(_texts(names, names.path_ids(identity)))


def _texts(names: Names, frames: tuple[int, ...]) -> Iterator[str]:
    for identity in frames:
        name = names.get(identity)
        if isinstance(name, CallSiteName):
            yield f"{PurePath(name.file).name}:{name.line} {name.function}"
        elif isinstance(name, str):
            yield name
