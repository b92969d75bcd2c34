"""Texts of the program's that become names: checkpoint ids, storages and messages of exceptions, all bounded."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any, Final

from otel_torchdist import guard
from otel_torchdist.model.names import SPARE_OF_LABELS

if TYPE_CHECKING:
    from otel_torchdist.tape.writer import TapeWriter

MAX_TEXT: Final = 200
MAX_TEXTS: Final = 256
"""Texts of a tape that become names as they are; a job may save a million times. Later ones lose their numbers."""
_ELLIPSIS: Final = "…"
_NUMBER: Final = re.compile(r"\d+")
_SCHEME: Final = re.compile(r"([a-z][a-z0-9+.-]{1,15})://", re.IGNORECASE)


class Texts:
    """Gives texts ids in a tape's dictionary."""

    def __init__(self) -> None:
        self._tape: TapeWriter | None = None
        self._known: dict[str, int] = {}

    def id_of(self, tape: TapeWriter, text: str) -> int:
        """Return the name id of a text; 0 for an empty one, or if there is no room."""
        if tape is not self._tape:
            self._tape, self._known = tape, {}
        if not text:
            return 0
        known = self._known.get(text)
        if known is not None:
            return known
        if len(self._known) >= MAX_TEXTS:
            return tape.names.find_room(_NUMBER.sub("#", text), SPARE_OF_LABELS)
        found = self._known[text] = tape.names.find_room(text, SPARE_OF_LABELS)
        return found


@guard.calls_plug_ins
def text_of(value: Any) -> str:
    """A path, id or message as text that any encoding can hold; of a long one the end, which tells paths apart."""
    if value is None:
        return ""
    try:
        text = os.fsdecode(value) if isinstance(value, bytes) else str(value)
    except Exception as error:  # an object of the program's
        guard.pass_on(error)
        return type(value).__name__
    text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= MAX_TEXT else _ELLIPSIS + text[1 - MAX_TEXT :]


def message_of(error: BaseException) -> str:
    """The first line of an exception's message."""
    message = text_of(error).strip()
    return message.splitlines()[0] if message else ""


def storage_of(kind: str, path: str) -> str:
    """What stores a checkpoint: a class, with the scheme of a path that has one: `FsspecWriter (s3)`."""
    scheme = _SCHEME.match(path)
    return f"{kind} ({scheme[1].lower()})" if scheme is not None else kind
