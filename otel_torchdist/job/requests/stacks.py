"""The stacks of one process's threads, written beside its tape when a reader asks for them."""

from __future__ import annotations

import json
import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from msgspec import Meta

from otel_torchdist.files.others import is_gone, read_regular, reason
from otel_torchdist.files.owned import replace_at_once
from otel_torchdist.naming import readable
from otel_torchdist.tape.names.decoding import CallSiteRead, DecodingError, decode_json, shown_site, site_document
from otel_torchdist.tape.names.model import CallSiteName


@dataclass(frozen=True, slots=True)
class ThreadStack:
    """The stack of one thread.

    Attributes:
        thread: Native thread id, the same as `Operation.thread`.
        name: The thread's name.
        frames: Innermost frame first.
    """

    thread: int
    name: str
    frames: tuple[CallSiteName, ...]


def stacks_path(tape: Path) -> Path:
    """Return the path of the stacks of the process that writes `tape`."""
    return tape.with_suffix(".stacks")


def write_stacks(tape: Path, request: int, stacks: list[ThreadStack]) -> None:
    """Replace the stacks beside a tape atomically: a reader sees the old ones or the new ones.

    Raises:
        OSError: The file cannot be written.
    """
    # Encoded in one piece: `json.dump` takes ten times as long, and holds the GIL.
    body = json.dumps({"request": request, "threads": [_document(stack) for stack in stacks]})
    replace_at_once(stacks_path(tape), tape.with_suffix(".stacks.new"), body.encode())


def _document(stack: ThreadStack) -> dict[str, object]:
    return {"thread": stack.thread, "name": stack.name, "frames": [site_document(frame) for frame in stack.frames]}


_logger = logging.getLogger("otel_torchdist")

MAX_BYTES: Final = 4 << 20
"""Maximum size of the stacks of one process: some thousand threads."""


class StacksFile:
    """Reads the stacks beside one tape. A file without an answer is not read again until it changes."""

    def __init__(self, tape: Path, owner: int | None = None) -> None:
        """Read the file beside a tape.

        Args:
            tape: The tape.
            owner: The user who must own the file; None for any.
        """
        self._path = stacks_path(tape)
        self._owner = owner
        self._has_warned = False
        self._useless: tuple[int, int, int, int] | None = None

    def read(self, request: int) -> list[ThreadStack] | None:
        """Return the stacks that answered `request` or a later one; None if there are none or they are unreadable."""
        try:
            facts = os.stat(self._path, follow_symlinks=False)
            found = facts.st_ino, facts.st_size, facts.st_mtime_ns, request
            if found == self._useless:
                return None
            content = read_regular(self._path, MAX_BYTES, self._owner)
        except OSError as error:
            if not is_gone(error) and not self._has_warned:
                self._has_warned = True
                _logger.warning("%s cannot be read: %s", self._path, reason(error))
            return None
        stacks = _decoded(content, request)
        self._useless = found if stacks is None else None
        return stacks


def read_stacks(tape: Path, request: int) -> list[ThreadStack] | None:
    """Read the stacks as `StacksFile.read` does, for callers that read once."""
    return StacksFile(tape).read(request)


@dataclass(frozen=True, slots=True)
class _Thread:
    thread: Annotated[int, Meta(ge=0, le=1 << 31)]
    name: str
    frames: tuple[CallSiteRead, ...]


@dataclass(frozen=True, slots=True)
class _Answer:
    request: int
    threads: tuple[_Thread, ...]


def _decoded(content: bytes, request: int) -> list[ThreadStack] | None:
    try:
        answer = decode_json(content, _Answer)
    except DecodingError:
        return None
    if answer.request < request:
        return None
    return [ThreadStack(one.thread, readable(one.name), tuple(map(shown_site, one.frames))) for one in answer.threads]
