"""Reads the stacks that a process has written beside its tape, without trusting them."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from msgspec import Meta

from otel_torchdist.model.rank_state.stacks import ThreadStack
from otel_torchdist.model.text import readable
from otel_torchdist.node.job.requests.stacks import stacks_path
from otel_torchdist.system.files.others import is_gone, read_regular, reason
from otel_torchdist.tape.names.decoding import CallSiteRead, DecodingError, decode_json, shown_site

_logger = logging.getLogger("otel_torchdist")

MAX_BYTES: Final = 4 << 20
"""Maximum size of one process's stacks: several thousand threads."""


class StacksFile:
    """The stacks beside one tape. A file that does not answer a request is not read again until it changes."""

    def __init__(self, tape: Path, owner: int | None = None) -> None:
        """Prepare to read the file beside a tape.

        Args:
            tape: The tape.
            owner: The user who must own the file; None for any.
        """
        self._path = stacks_path(tape)
        self._owner = owner
        self._has_warned = False
        self._rejected_version: tuple[int, int, int, int] | None = None

    def read(self, request: int) -> list[ThreadStack] | None:
        """Return the stacks that answer `request` or a later one; None if there are none or they are unreadable."""
        try:
            info = os.stat(self._path, follow_symlinks=False)
            version = info.st_ino, info.st_size, info.st_mtime_ns, request
            if version == self._rejected_version:
                return None
            content = read_regular(self._path, MAX_BYTES, self._owner)
        except OSError as error:
            if not is_gone(error) and not self._has_warned:
                self._has_warned = True
                _logger.warning("%s cannot be read: %s", self._path, reason(error))
            return None
        stacks = _decoded(content, request)
        self._rejected_version = version if stacks is None else None
        return stacks


def read_stacks(tape: Path, request: int, owner: int | None = None) -> list[ThreadStack] | None:
    """Return the stacks as `StacksFile.read` does, for callers that read only once."""
    return StacksFile(tape, owner).read(request)


@dataclass(frozen=True, slots=True)
class _Thread:
    thread: Annotated[int, Meta(ge=0, le=1 << 31)]
    name: str
    frames: tuple[CallSiteRead, ...]
    is_locked: bool | None = None


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
    return [
        ThreadStack(thread.thread, readable(thread.name), tuple(map(shown_site, thread.frames)), thread.is_locked)
        for thread in answer.threads
    ]
