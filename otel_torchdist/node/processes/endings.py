"""How processes ended: alone or with others, with which exception, and which ended in silence."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from otel_torchdist.model.lives import Death, RankLife, Stopped
from otel_torchdist.model.naming import readable
from otel_torchdist.node.job.ancestry import parent_of
from otel_torchdist.node.job.runs.lives import (
    MAX_ERROR,
    has_ended_with_parent,
    has_left,
    is_helper,
    life_after_exit,
    life_of,
    read_death,
    waits,
)
from otel_torchdist.node.processes.state import is_killed
from otel_torchdist.system.files.others import read_regular
from otel_torchdist.tape.identity import process_state
from otel_torchdist.tape.names.decoding import DecodingError, decode_json
from otel_torchdist.tape.reading.reader import TapeReader

# --- alone or with others ---------------------------------------------------------------------------------------------
# Finds out whether a process ended alone, or whether what has ended it was about to end others as well.
# The kernel shows at once that a signal has killed a process, but freeing a large one's memory takes it 10 ms and more,
# one with a GPU seconds. So if something ends all ranks, the others are on their way when the first is gone. A launcher
# that reacts to an end does so only when it next polls its children, until when it sleeps (torchrun for 0.1 s). One
# that does not sleep when its first child ends may have been interrupted between its first signal and the next, on a
# machine without a free core: what it kills until it sleeps belongs to the same.


LONGEST_NS: Final = 250_000_000
"""How long a launcher may take for its signals."""
_RUNNABLE: Final = "R"


def is_any_killed(pids: Collection[int]) -> bool:
    """Whether a signal has killed one of these processes, which have not ended yet."""
    return any(map(is_killed, pids))


def is_launcher_awake(pids: Collection[int]) -> bool:
    """Whether the parent of one of these processes runs, or waits for a core."""
    return any(map(_is_runnable, {parent_of(pid) for pid in pids}))


def _is_runnable(pid: int) -> bool:
    found = process_state(pid)
    return found is not None and found[0] == _RUNNABLE


# --- torchelastic's error file ----------------------------------------------------------------------------------------
# torchelastic's error file: the exception that ended a rank, as written by `torch.distributed.elastic`'s `@record`.
# torchrun names the file in each worker's environment. Nothing else of the environment, which may hold secrets, is
# kept.


VARIABLE: Final = b"TORCHELASTIC_ERROR_FILE="
MAX_ENVIRONMENT: Final = 4 << 20
MAX_FILE_BYTES: Final = 1 << 20
"""The file contains the traceback too."""


@dataclass(frozen=True, slots=True)
class _Extra:
    py_callstack: str = ""
    timestamp: str | int = ""


@dataclass(frozen=True, slots=True)
class RecordedError:
    """The exception in an error file; programs may write a text of their own instead.

    Attributes:
        message: Its type and message, which may have several lines.
        extraInfo: When it was raised, and its traceback.
    """

    message: str
    extraInfo: _Extra = _Extra()

    @property
    def summary(self) -> str:
        """The first line of the message."""
        return self.message.strip().partition("\n")[0].strip()


@dataclass(frozen=True, slots=True)
class _ErrorFile:
    message: RecordedError | str


def error_file_of(pid: int) -> Path | None:
    """Return the error file of a live process of this user; None if it has none, or belongs to another user."""
    folder = Path(f"/proc/{pid}")
    try:
        if os.stat(folder).st_uid != os.geteuid():
            return None
        with (folder / "environ").open("rb") as stream:
            environment = stream.read(MAX_ENVIRONMENT)
    except OSError:
        return None
    found = next((entry for entry in environment.split(b"\0") if entry.startswith(VARIABLE)), VARIABLE)
    path = Path(os.fsdecode(found[len(VARIABLE) :]))
    return path if path.is_absolute() else None


def error_in(path: Path) -> str:
    """Return type and first line of the exception (`ValueError: loss is nan`); '' if the file does not show it."""
    try:
        found = decoded_error(read_regular(path, MAX_FILE_BYTES, os.geteuid()))
    except (OSError, ValueError):
        return ""
    return readable(found.summary, MAX_ERROR)[:MAX_ERROR] if found is not None else ""


def decoded_error(content: bytes) -> RecordedError | None:
    """Return the exception in an error file; None if it is no such file."""
    try:
        message = decode_json(content, _ErrorFile).message
    except DecodingError:
        return None
    return RecordedError(message) if isinstance(message, str) else message


# --- recorded deaths --------------------------------------------------------------------------------------------------
# The ends of processes as recorded by the job's agent, for passive readers.


class Deaths(Protocol):
    """A source that knows how the processes that write tapes have ended."""

    def death_of(self, nonce: int) -> Death | None:
        """Return the death of the process that writes the tape with this nonce; None while none was seen."""
        ...

    def holds(self, nonce: int) -> bool:
        """Whether the end of a process will be known, but is not yet."""
        ...

    def note(self, nonce: int, stopped: Stopped | None, ran_ns: int) -> None:
        """Remember how a live process was last seen not to run, and when it was seen to run without a heartbeat."""
        ...


class RecordedDeaths:
    """Reads the files beside tapes. Once the lock on a tape is gone, callers wait a moment for the agent's record."""

    def __init__(self) -> None:
        self._tapes: dict[int, Path] = {}
        self._known: dict[int, Death] = {}

    def follow(self, nonce: int, tape: Path) -> None:
        """Read the file beside this tape too."""
        self._tapes[nonce] = tape

    def death_of(self, nonce: int) -> Death | None:
        """See `Deaths`. The cause of a death may be recorded later than the death itself."""
        known = self._known.get(nonce)
        if (known is None or known.status is None) and nonce in self._tapes:
            found = read_death(self._tapes[nonce])
            if found is not None:
                known = self._known[nonce] = found
        return known

    def holds(self, nonce: int) -> bool:
        """See `Deaths`."""
        return self.death_of(nonce) is None

    def note(self, nonce: int, stopped: Stopped | None, ran_ns: int) -> None:
        """See `Deaths`; ignored, because the agent remembers it."""


# --- silent ends ------------------------------------------------------------------------------------------------------
# Classifies processes that disappeared without reporting why: not all of them died.
# A rank may exit through `os._exit(0)`, bypassing every handler, as some programs do when their teardown hangs. A
# helper, which is a process that a rank has started and that created a group of its own, is terminated when its rank
# ends.


REAPED_S: Final = 1.0
"""How long to wait for the exit code of a process, which is known once its parent has reaped it."""
TOGETHER_S: Final = 5.0
"""A helper that has been gone for no longer than this may have ended with its rank, whose own end takes some time."""


class SilentEnds:
    """Distinguishes deaths from clean exits, and remembers the results."""

    def __init__(self, deaths: Deaths | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        """Know no end yet.

        Args:
            deaths: The ends of processes; from the files that an agent has written if None.
            clock: Returns the monotonic time in seconds.
        """
        self._now = clock
        self._deaths = deaths
        self._gone_since: dict[int, float] = {}
        self._settled: dict[int, RankLife] = {}

    def life_of(self, tape: TapeReader, tapes: Collection[TapeReader]) -> RankLife:
        """Return what became of the process that writes a tape; `RUNNING` also while that cannot be known yet.

        Args:
            tape: The tape of a rank or of a helper, polled to its end.
            tapes: All tapes that are read.

        Raises:
            TapeError: The tape is damaged.
        """
        nonce = tape.identity.nonce
        known = self._settled.get(nonce)
        if known is not None:
            return known
        life = life_of(tape)
        if life is RankLife.FINISHED:  # not settled: its exit code is known later
            return life_after_exit(self._death_of(tape))
        if life is RankLife.DEAD:
            life = self._classify(tape, tapes)
        if life is not RankLife.RUNNING:
            self._settled[nonce] = life
        return life

    def _classify(self, tape: TapeReader, tapes: Collection[TapeReader]) -> RankLife:
        if waits(tape):
            return RankLife.DEAD
        if self.has_left(tape) or has_ended_with_parent(tape, tapes):
            return RankLife.FINISHED
        helps = is_helper(tape, tapes)
        if not helps and self._has_died(tape):
            return RankLife.DEAD
        gone_since = self._gone_since.setdefault(tape.identity.nonce, self._now())
        deadline_s = TOGETHER_S if helps else REAPED_S
        return RankLife.RUNNING if self._now() - gone_since < deadline_s else RankLife.DEAD

    def has_left(self, tape: TapeReader) -> bool:
        """Whether a process exited with code 0, waiting for nothing, without recording that on its tape."""
        return has_left(tape, self._death_of(tape))

    def is_ending(self, tape: TapeReader) -> bool:
        """Whether a process has released its lock and is about to end: its exit code will show whether it died."""
        return self._deaths is not None and self._deaths.holds(tape.identity.nonce) and not tape.is_alive()

    def _has_died(self, tape: TapeReader) -> bool:
        """Whether it is known that a process did not exit cleanly."""
        death = self._death_of(tape)
        return death is not None and death.status not in (None, 0)

    def _death_of(self, tape: TapeReader) -> Death | None:
        if self._deaths is not None:
            return self._deaths.death_of(tape.identity.nonce)
        return read_death(tape.path, tape.owner)
