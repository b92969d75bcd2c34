"""Classifies the ends of processes: alone or with others, with which exception, and as a death or a clean exit."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from otel_torchdist.model.rank_state.lives import Death, RankLife, Stopped
from otel_torchdist.model.text import readable
from otel_torchdist.node.job.ancestry import parent_of
from otel_torchdist.node.job.runs.lives import (
    MAX_ERROR,
    exited_silently,
    has_ended_with_parent,
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
# Decides whether a process ended alone, or whether its cause of death was about to end other processes too.
#
# The kernel marks a killed process at once, but freeing its memory takes 10 ms and more; with a GPU, seconds. So if all
# ranks are killed together, the others are already marked when the first has ended.
#
# A launcher that reacts to an end, in contrast, sleeps until its next poll (torchrun for 0.1 s). If a launcher is awake
# when its first child ends, it may have been preempted between two of its signals, on a machine without a free core:
# all processes that it kills before it sleeps belong together.


SIGNALS_NS: Final = 250_000_000
"""Longest time that a launcher takes to send its signals to all ranks."""
_RUNNABLE: Final = "R"


def is_any_killed(pids: Collection[int]) -> bool:
    """Return whether a signal has killed one of these processes, which still exist."""
    return any(map(is_killed, pids))


def is_launcher_awake(pids: Collection[int]) -> bool:
    """Return whether the parent of one of these processes runs, or waits for a core."""
    return any(map(_is_runnable, {parent_of(pid) for pid in pids}))


def _is_runnable(pid: int) -> bool:
    state = process_state(pid)
    return state is not None and state[0] == _RUNNABLE


# --- torchelastic's error file ----------------------------------------------------------------------------------------
# The exception that ended a rank, as written by `@record` of `torch.distributed.elastic`.
# torchrun names the file in each worker's environment. The rest of the environment is not kept: it may contain secrets.


VARIABLE: Final = b"TORCHELASTIC_ERROR_FILE="
MAX_ENVIRONMENT: Final = 4 << 20
MAX_FILE_BYTES: Final = 1 << 20
"""Maximum size of an error file, which contains the traceback too."""


@dataclass(frozen=True, slots=True)
class _Extra:
    py_callstack: str = ""
    timestamp: str | int = ""


@dataclass(frozen=True, slots=True)
class RecordedError:
    """The exception in an error file, or another text that the program has written.

    Attributes:
        message: Type and message of the exception; may have several lines.
        extraInfo: Its time and traceback.
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
    """Return the error file of a live process; None if it has none, or belongs to another user."""
    folder = Path(f"/proc/{pid}")
    try:
        if os.stat(folder).st_uid != os.geteuid():
            return None
        with (folder / "environ").open("rb") as stream:
            environment = stream.read(MAX_ENVIRONMENT)
    except OSError:
        return None
    entry = next((entry for entry in environment.split(b"\0") if entry.startswith(VARIABLE)), VARIABLE)
    path = Path(os.fsdecode(entry[len(VARIABLE) :]))
    return path if path.is_absolute() else None


def error_in(path: Path) -> str:
    """Return type and first line of the exception (`ValueError: loss is nan`); '' if the file contains none."""
    try:
        error = decoded_error(read_regular(path, MAX_FILE_BYTES, os.geteuid()))
    except (OSError, ValueError):
        return ""
    return readable(error.summary, MAX_ERROR)[:MAX_ERROR] if error is not None else ""


def decoded_error(content: bytes) -> RecordedError | None:
    """Return the exception in an error file; None if the content is not an error file."""
    try:
        message = decode_json(content, _ErrorFile).message
    except DecodingError:
        return None
    return RecordedError(message) if isinstance(message, str) else message


# --- recorded deaths --------------------------------------------------------------------------------------------------
# The deaths that the job's agent has recorded, for passive readers.


class Deaths(Protocol):
    """A source of the deaths of tapes' writers."""

    def death_of(self, nonce: int) -> Death | None:
        """Return the death of the writer of the tape with this nonce; None if none has been seen."""
        ...

    def awaits_end(self, nonce: int) -> bool:
        """Return whether `death_of` will return the end of a process later, but does not yet."""
        ...

    def note(self, nonce: int, stopped: Stopped | None, ran_ns: int) -> None:
        """Remember the last observation of a live process.

        Args:
            nonce: Nonce of its tape.
            stopped: Why the process did not run; None if it ran.
            ran_ns: Last time at which it ran without a heartbeat; 0 for never.
        """
        ...


class RecordedDeaths:
    """The death files beside tapes. Once the lock on a tape is free, callers wait a moment for the agent's record."""

    def __init__(self) -> None:
        self._tapes: dict[int, Path] = {}
        self._recorded: dict[int, Death] = {}

    def follow(self, nonce: int, tape: Path) -> None:
        """Read the death file of this tape too."""
        self._tapes[nonce] = tape

    def death_of(self, nonce: int) -> Death | None:
        """See `Deaths`. The cause of a death may be recorded later than the death itself."""
        death = self._recorded.get(nonce)
        if (death is None or death.status is None) and nonce in self._tapes:
            recorded = read_death(self._tapes[nonce])
            if recorded is not None:
                death = self._recorded[nonce] = recorded
        return death

    def awaits_end(self, nonce: int) -> bool:
        """See `Deaths`."""
        return self.death_of(nonce) is None

    def note(self, nonce: int, stopped: Stopped | None, ran_ns: int) -> None:
        """Do nothing: the agent remembers its own observations. See `Deaths`."""


# --- silent ends ------------------------------------------------------------------------------------------------------
# Classifies processes that disappeared without a final record: not all of them died.
# A rank may exit with `os._exit(0)`, which bypasses every handler; some programs do so because their teardown hangs. A
# helper, a process that a rank has started and that created its own group, is terminated when its rank ends.


REAPED_S: Final = 1.0
"""Seconds to wait for the exit code of a process, which is known once its parent has reaped it."""
TOGETHER_S: Final = 5.0
"""Seconds within which a helper may end before its rank does and still count as ended with it."""


class SilentEnds:
    """The classification of silent ends as deaths or clean exits. Results are remembered."""

    def __init__(self, deaths: Deaths | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        """Start without ends.

        Args:
            deaths: Source of deaths; None for the death files that an agent has written.
            clock: Returns the monotonic time in seconds.
        """
        self._now = clock
        self._deaths = deaths
        self._gone_since: dict[int, float] = {}
        self._settled: dict[int, RankLife] = {}

    def life_of(self, tape: TapeReader, tapes: Collection[TapeReader]) -> RankLife:
        """Return the state of a tape's writer; `RUNNING` also while its end is not established.

        Args:
            tape: The tape of a rank or of a helper, polled to its end.
            tapes: All tapes being read.

        Raises:
            TapeError: The tape is damaged.
        """
        nonce = tape.identity.nonce
        settled = self._settled.get(nonce)
        if settled is not None:
            return settled
        life = life_of(tape)
        if life is RankLife.FINISHED:  # not settled: the exit code becomes known later
            return life_after_exit(self._death_of(tape))
        if life is RankLife.DEAD:
            life = self._classify(tape, tapes)
        if life is not RankLife.RUNNING:
            self._settled[nonce] = life
        return life

    def _classify(self, tape: TapeReader, tapes: Collection[TapeReader]) -> RankLife:
        if waits(tape):
            return RankLife.DEAD
        if self.exited_silently(tape) or has_ended_with_parent(tape, tapes):
            return RankLife.FINISHED
        is_of_helper = is_helper(tape, tapes)
        if not is_of_helper and self._has_died(tape):
            return RankLife.DEAD
        gone_since = self._gone_since.setdefault(tape.identity.nonce, self._now())
        deadline_s = TOGETHER_S if is_of_helper else REAPED_S
        return RankLife.RUNNING if self._now() - gone_since < deadline_s else RankLife.DEAD

    def exited_silently(self, tape: TapeReader) -> bool:
        """Return whether a process exited with code 0, waiting for nothing, without recording that on its tape."""
        return exited_silently(tape, self._death_of(tape))

    def is_ending(self, tape: TapeReader) -> bool:
        """Return whether a process has released its lock but not ended; its exit code will show whether it died."""
        return self._deaths is not None and self._deaths.awaits_end(tape.identity.nonce) and not tape.is_alive()

    def _has_died(self, tape: TapeReader) -> bool:
        """Return whether the wait status of a process is known, and not 0."""
        death = self._death_of(tape)
        return death is not None and death.status not in (None, 0)

    def _death_of(self, tape: TapeReader) -> Death | None:
        if self._deaths is not None:
            return self._deaths.death_of(tape.identity.nonce)
        return read_death(tape.path, tape.owner)
