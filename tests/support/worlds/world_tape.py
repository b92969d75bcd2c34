"""A real tape of a rank without a process, with a reader that polls it."""

from __future__ import annotations

import atexit
import dataclasses
import functools
import os
import shutil
import tempfile
import weakref
from pathlib import Path
from typing import Final

from otel_torchdist.judge.world.following.follower import TapeFollower
from otel_torchdist.model.names import (
    CallerName,
    CallPathName,
    CallSiteName,
)
from otel_torchdist.tape.identity import TapeIdentity, identify
from otel_torchdist.tape.layout import MAIN_CALLER, NO_CALLER
from otel_torchdist.tape.names.reader import MAIN_THREAD
from otel_torchdist.tape.reading.reader import TapeReader
from otel_torchdist.tape.writer import TapeWriter

CAPACITY: Final = 256
"""Records of a rank's ring."""


@functools.cache
def _folder() -> Path:
    """Where the tapes of this process's worlds are."""
    path = Path(tempfile.mkdtemp(prefix="otel-torchdist-worlds-", dir="/dev/shm"))
    creator = os.getpid()

    def remove() -> None:
        if os.getpid() == creator:  # not in a child that was forked
            shutil.rmtree(path, ignore_errors=True)

    atexit.register(remove)
    return path


@functools.cache
def _identity() -> TapeIdentity:
    """The identity of a process of another pid namespace, which no reader asks the kernel about."""
    return dataclasses.replace(identify(0, 0, 1, CAPACITY), pid_namespace=1)


class WorldTape:
    """A rank's tape, and what a reader that polls it knows."""

    def __init__(self, rank: int) -> None:
        nonce = int.from_bytes(os.urandom(8), "little") | 1
        self.writer = TapeWriter(_folder(), dataclasses.replace(_identity(), nonce=nonce, rank=rank, local_rank=rank))
        self.reader = TapeReader.of_writer(self.writer)
        self.follower = TapeFollower(self.reader)
        self.unread = 0
        self._callers: dict[str, int] = {"": NO_CALLER, MAIN_THREAD: MAIN_CALLER}
        weakref.finalize(self, _remove, self.writer).atexit = False

    def caller(self, function: str) -> int:
        """The number of what a thread runs."""
        if function not in self._callers:
            number = len(self._callers)
            self.writer.names.intern(CallerName(number, function))
            self._callers[function] = number
        return self._callers[function]

    def call_site(self, frames: tuple[CallSiteName, ...]) -> int:
        """The id of a call site, with the frames that led there."""
        first, *others = map(self.writer.names.intern, frames)
        return self.writer.names.intern(CallPathName(first, tuple(others))) if others else first

    def wrote(self) -> None:
        """Count a record that a reader has not seen; the reader polls before the ring is full."""
        self.unread += 1
        if self.unread >= CAPACITY // 2:
            self.poll()

    def poll(self) -> None:
        """Read what is new."""
        self.unread = 0
        self.follower.observe(self.reader.poll())


def _remove(writer: TapeWriter) -> None:
    writer.close()
    for suffix in (".tape", ".names"):
        writer.path.with_suffix(suffix).unlink(missing_ok=True)
