"""The dictionary beside a tape: strings are written once and records carry their ids. This is its writing side.

A file of lines `crc32 json`, only ever appended to, so that a reader can follow it and a cut line is seen as cut.
"""

from __future__ import annotations

import json
import os
import threading
import zlib
from pathlib import Path
from typing import Any, Final, TypeAlias

from otel_torchdist import _guard
from otel_torchdist.tape.records import CallSiteName, GroupName, SignatureName

Name: TypeAlias = GroupName | SignatureName | CallSiteName | str

OTHER: Final = 0
"""Id of what is not known: never set, or one name too many."""
MAX_NAMES: Final = 8192
MAX_BYTES: Final = 4 << 20
SPARE_OF_SHAPES: Final = MAX_NAMES // 4
"""Names that must be left when one with shapes is added: in some jobs these never repeat, and the rest matters more."""
SPARE_OF_GROUPS: Final = MAX_NAMES // 8
SPARE_OF_LABELS: Final = MAX_NAMES // 16
SPARE_OF_CALL_SITES: Final = MAX_NAMES // 32
MAX_TEXT: Final = 512


class NamesWriter:
    """Gives each new name an id and appends it to the file before any record can carry the id.

    Attributes:
        max_bytes: How large the file may get.
        dropped: Names that became `OTHER`.
        is_scarce: Whether a name was refused so that others have room.
    """

    def __init__(self, path: Path, max_bytes: int = MAX_BYTES) -> None:
        """Create the file; it must not exist, and never has more than `max_bytes`.

        Raises:
            OSError: The file cannot be created.
        """
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._ids: dict[Name, int] = {}
        self._bytes = 0
        self.max_bytes = max_bytes
        self._lock = threading.Lock()
        self.dropped = 0
        self.is_scarce = False

    def intern(self, name: Name, spare: int = 0) -> int:
        """The id of a name; `OTHER`, and counted, once the dictionary is full or cannot be written.

        Args:
            name: The name.
            spare: How many names must be left for others.
        """
        identity = self.find_room(name, spare)
        if identity == OTHER:
            self.dropped += 1
        return identity

    def find_room(self, name: Name, spare: int) -> int:
        """The same for a name that can be done without: `OTHER` is not counted."""
        known = self._ids.get(name)
        if known is not None:
            return known
        with self._lock:
            return self._ids.get(name) or self._append(name, spare)

    def _append(self, name: Name, spare: int) -> int:
        identity = len(self._ids) + 1
        room = self.max_bytes - spare * (self.max_bytes // MAX_NAMES) - self._bytes
        if identity > MAX_NAMES - spare or room <= 0:
            self.is_scarce = True
            return OTHER
        line = _encode(identity, name)
        if len(line) > room or not self._write(line):
            self.is_scarce = True
            return OTHER
        self._bytes += len(line)
        self._ids[name] = identity
        return identity

    def _write(self, line: bytes) -> bool:
        try:
            if os.write(self._file, line) == len(line):
                return True
            os.ftruncate(self._file, self._bytes)  # a cut line would spoil the next one too
        except OSError as error:
            _guard.pass_on(error)  # TimeoutError is one, too
        return False

    def close(self) -> None:
        """Close the file; later names become `OTHER`."""
        with self._lock:
            if self._file >= 0:
                os.close(self._file)
            self._file = -1


_KINDS: Final[dict[str, type[GroupName | SignatureName | CallSiteName]]] = {
    "group": GroupName,
    "signature": SignatureName,
    "call_site": CallSiteName,
}


def _encode(identity: int, name: Name) -> bytes:
    if isinstance(name, str):
        body: dict[str, Any] = {"id": identity, "text": name[:MAX_TEXT]}
    else:
        kind = next(kind for kind, cls in _KINDS.items() if isinstance(name, cls))
        # `dataclasses.asdict` would copy a group's thousands of ranks one by one.
        body = {"id": identity, kind: {field: getattr(name, field) for field in name.__slots__}}
    text = json.dumps(body, separators=(",", ":")).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)
