"""The writing side of a tape's dictionary, an append-only file of lines that readers can follow."""

from __future__ import annotations

import json
import os
import threading
import zlib
from pathlib import Path
from typing import Any, Final

from otel_torchdist import guard
from otel_torchdist.model.names import (
    MAX_BYTES,
    MAX_NAMES,
    MAX_TEXT,
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
from otel_torchdist.system.files.kept import KeptFile

_KINDS: Final[
    dict[
        str,
        type[
            GroupName
            | SignatureName
            | CallSiteName
            | CallPathName
            | CallerName
            | LabelName
            | ParameterNames
            | RaisedName
        ],
    ]
] = {
    "group": GroupName,
    "signature": SignatureName,
    "call_site": CallSiteName,
    "call_path": CallPathName,
    "caller": CallerName,
    "parameters": ParameterNames,
    "label": LabelName,
    "raised": RaisedName,
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
    return member.value  # only enums lack a JSON form


def site_document(site: CallSiteName) -> dict[str, object]:
    """Return the JSON document of `decoding.CallSiteRead`. `asdict` takes ten times as long, and holds the GIL."""
    return {"function": site.function, "file": site.file, "line": site.line}


class NamesWriter:
    """Assigns ids to names, and appends each name to the file before any record can refer to it.

    Attributes:
        max_bytes: Maximum size of the file.
        dropped: Number of names recorded as `OTHER`.
        is_scarce: Whether a name has been refused because the dictionary is full, or because of `spare`.
        is_lost: Whether the program has closed the file and it could not be reopened.
    """

    def __init__(self, path: Path, max_bytes: int = MAX_BYTES) -> None:
        """Create the file, which must not exist yet and never exceeds `max_bytes`.

        Raises:
            OSError: The file cannot be created.
        """
        self._file = KeptFile(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND)
        self._ids: dict[Name, int] = {}
        self._next = 1
        self._bytes = 0
        self.max_bytes = max_bytes
        self._lock = threading.Lock()
        self.dropped = 0
        self.is_scarce = False
        self.is_lost = False
        self._is_closed = False
        self._process = os.getpid()

    def intern(self, name: Name, spare: int = 0) -> int:
        """Return the id of a name; `OTHER`, counted as dropped, if the dictionary is full or cannot be written.

        Args:
            name: The name.
            spare: Number of ids that must stay free for other names.
        """
        identity = self.intern_optional(name, spare)
        if identity == OTHER:
            self.dropped += 1
        return identity

    def intern_optional(self, name: Name, spare: int) -> int:
        """Return the id of a dispensable name, as `intern` does, but without counting `OTHER` as dropped."""
        identity = self._ids.get(name)
        if identity is not None:
            return identity
        with self._lock:
            return self._ids.get(name) or self._append(name, spare)

    def replace(self, identity: int, name: Name, spare: int = 0) -> None:
        """Replace the name of an id. Does nothing if there is no space.

        Args:
            identity: The id.
            name: The new name.
            spare: As in `intern`.
        """
        with self._lock:
            line = encode_line(identity, name)
            if identity != OTHER and len(line) <= self._room(spare) and self._write(line):
                self._bytes += len(line)
                self._ids[name] = identity

    def _room(self, spare: int) -> int:
        """Return the number of bytes available for a name."""
        return self.max_bytes - spare * (self.max_bytes // MAX_NAMES) - self._bytes

    def _append(self, name: Name, spare: int) -> int:
        identity = self._next
        room = self._room(spare)
        if identity > MAX_NAMES - spare or room <= 0:
            self.is_scarce = True
            return OTHER
        line = encode_line(identity, name)
        if len(line) > room or not self._write(line):
            self.is_scarce = self.is_scarce or not self.is_lost
            return OTHER
        self._bytes += len(line)
        self._next += 1
        self._ids[name] = identity
        return identity

    def _write(self, line: bytes) -> bool:
        try:
            if self._is_closed or os.getpid() != self._process or not self._has_file():
                return False
            if os.write(self._file.fileno(), line) == len(line):
                return True
            self._truncate()
        except OSError as error:
            guard.pass_on(error)  # a signal handler of the program may raise TimeoutError, which is an OSError
        return False

    def _has_file(self) -> bool:
        """Reopen the file if the program has closed it. Return whether it is open."""
        if self._file.is_open:
            return True
        try:
            self._file.reopen()
            self._truncate()
        except OSError as error:
            guard.pass_on(error)
            self.is_lost = True
            return False
        return True

    def _truncate(self) -> None:
        """Remove a partly written line: it would also corrupt the next line."""
        os.ftruncate(self._file.fileno(), self._bytes)

    def close(self) -> None:
        """Close the file. Later names become `OTHER`."""
        with self._lock:
            self._is_closed = True
            self._file.close()
