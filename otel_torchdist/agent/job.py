"""One job directory that an agent reads: its reader lock, its tapes and its checkpoint."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from otel_torchdist.agent.reading import checkpoint
from otel_torchdist.agent.reading.checkpoint import Checkpoint
from otel_torchdist.agent.reading.reader import Reader
from otel_torchdist.errors import TapeError, TorchDistError
from otel_torchdist.node.job.directory import job_directories, tapes_in
from otel_torchdist.node.job.runs.membership import RunMember, of_living_runs
from otel_torchdist.node.job.runs.runs import member_of
from otel_torchdist.node.job.tapes import LocalTapes, ReaderLock
from otel_torchdist.node.job.worlds import worlds_beside
from otel_torchdist.system.files.others import reason
from otel_torchdist.system.files.owned import directory_facts
from otel_torchdist.tape.reading.reader import TapeReader

READ_BY_ANOTHER: Final = "another process reads these tapes: an agent, or a rank (OTEL_PYTHON_TORCHDIST_READER=thread)"

REMOVED: Final = (
    "%s was removed while its ranks are running (systemd-logind does that at logout with RemoveIPC=yes, and so do "
    "cleaners of /dev/shm): stalls are still reported, but without stacks; `watch` and `diagnose` do not find the job, "
    "and no other agent can take over from this one"
)

_logger = logging.getLogger("otel_torchdist")


class AgentError(TorchDistError):
    """The tapes of a job directory cannot be read by this process; the message names the directory and the reason."""


class Job:
    """The tapes of one job directory, read by this process alone until `close`.

    Attributes:
        owner: Id of the user who owned the directory when it was opened. The path may lead elsewhere at any later
            moment, so all files that are read or written for the job must belong to this user.
        identity: Device and inode of the directory.
        followed: Nonces of all tapes of the directory that the reader has followed so far.
    """

    def __init__(self, directory: Path, ignores_checkpoint: bool = False) -> None:
        """Become the only reader of `directory`.

        Args:
            directory: The job directory.
            ignores_checkpoint: Whether to read the tapes from their oldest records, even those exported before.

        Raises:
            AgentError: Another process reads the directory, it does not exist, or it is not writable.
        """
        self.directory = directory
        try:
            info = directory_facts(directory)
        except OSError as error:
            raise AgentError(f"{directory}: cannot be read: {reason(error)}") from error
        self.owner, self.identity = info.st_uid, (info.st_dev, info.st_ino)
        self._reader_lock = _acquire_lock(directory, self.owner)
        try:
            before = Checkpoint() if ignores_checkpoint else checkpoint.load(directory, self.owner)
        except OSError as error:
            self._reader_lock.resign()
            raise AgentError(f"{directory}: cannot be read: {reason(error)}") from error
        self._resumed_from = before or Checkpoint()
        self._lacks_checkpoint = before is None
        self._filters_exported = not ignores_checkpoint
        self.followed: set[int] = set()
        self._can_write = True

    def follow_new_tapes(self, reader: Reader, most: int | None = None) -> None:
        """Make `reader` follow the new tapes, at most `most` of them."""
        tapes = [tape for tape in self._reader_lock.tapes.new(only_alive=False, most=most) if not self._is_done(tape)]
        if self._filters_exported:
            self._filters_exported = False
            tapes = _not_exported(tapes, self._lacks_checkpoint)
        for tape in tapes:
            self._follow(tape, reader)

    def _follow(self, tape: TapeReader, reader: Reader) -> None:
        nonce = tape.identity.nonce
        if reader.knows(nonce):  # only a copy of a tape has the same nonce, and it must not replace the original
            if nonce not in self.followed:  # else it is the same tape, which a scan missed for a moment
                self._reader_lock.tapes.warn("%s is ignored: another tape with the same name is being read", tape.path)
            tape.close()
            return
        try:
            reader.follow(tape, before=self._resumed_from.ranks.get(nonce))
            self.followed.add(nonce)
        except TapeError as error:  # removed or damaged since it was opened
            _logger.warning("a tape can no longer be read: %s", error)
            reader.forget(nonce)
        except Exception:
            reader.forget(nonce)
            raise

    def _is_done(self, tape: TapeReader) -> bool:
        """Return whether an earlier agent has read a tape to its end; if so, close it."""
        if tape.identity.nonce not in self._resumed_from.done:
            return False
        tape.close()
        return True

    @property
    def refusal(self) -> str:
        """Why this process can read none of its tapes: another version has written them. '' if it can read any."""
        return self._reader_lock.tapes.refusal

    def save(self, reader: Reader) -> None:
        """Save the reading position of each tape as a checkpoint; warn once while that fails."""
        states = {nonce: state for nonce, state in reader.states().items() if nonce in self.followed}
        done = self._resumed_from.done | (self.followed - states.keys())
        try:
            checkpoint.save(self.directory, Checkpoint(states, done), self.owner)
            self._can_write = True
        except OSError as error:
            if self._can_write and not self.directory.exists():
                self._reader_lock.tapes.warn(REMOVED, self.directory)
            elif self._can_write:
                self._reader_lock.tapes.warn(
                    "%s: the agent's checkpoint cannot be written (%s): an agent that takes over from this one would "
                    "export again what was exported since the last checkpoint",
                    self.directory, error,
                )  # fmt: skip
            self._can_write = False

    def close(self) -> None:
        """Release the directory to other readers."""
        self._reader_lock.resign()


def _acquire_lock(directory: Path, owner: int) -> ReaderLock:
    try:
        reader_lock = ReaderLock(directory, owner)
    except OSError as error:
        raise AgentError(f"{directory}: cannot be read: {reason(error)}") from error
    if reader_lock.is_won:
        return reader_lock
    reader_lock.resign()
    raise AgentError(f"{directory}: {READ_BY_ANOTHER}")


def _not_exported(tapes: list[TapeReader], lacks_checkpoint: bool) -> list[TapeReader]:
    """Return the tapes that this agent has to export, and close the others.

    A tape of a run that is over is closed in two cases: its rank has exported it, or the checkpoint is lost, so that an
    earlier agent may have exported it.
    """
    members: dict[TapeReader, RunMember] = {}
    exported: set[TapeReader] = set()
    for tape in tapes:
        with contextlib.suppress(TapeError):  # damaged: the reader warns of it
            members[tape] = member_of(tape)
            if lacks_checkpoint or tape.status().exported_by_rank:
                exported.add(tape)
    exported.difference_update(of_living_runs(members))
    for tape in exported:
        tape.close()
    return [tape for tape in tapes if tape not in exported]


# --- neighboring jobs -------------------------------------------------------------------------------------------------
# Finds two kinds of other jobs on this node, and reads their tapes to see who waits for whom:
#
# * Jobs that share a standalone process group (with its own store) with one of the agent's jobs.
# * Jobs that may be other parts of an incomplete launch: ranks started without a launcher have one job for each master
#   address.
#
# Their own agents export these tapes. The agents need not elect a judge, because all see the same tapes. If
# runs share a world, the agent of the largest run judges it. Each part of a launch is judged by its own agent.


SEARCH_S: Final = 1.0
WAITED_NS: Final = 2_000_000_000
"""Minimum age of the newest tape of an incomplete launch before the launch counts as waiting."""
MAX_NEIGHBORS: Final = 16
"""Maximum number of neighboring jobs to read."""
MAX_TAPES: Final = 256
"""Maximum number of tapes of neighboring jobs to read."""


class Neighbors:
    """The neighboring jobs of an agent's jobs."""

    def __init__(self) -> None:
        """Start without neighbors."""
        self._tapes: dict[Path, LocalTapes] = {}
        self._searched_at = float("-inf")

    def update(self, reader: Reader, directories: Collection[Path], owner: int) -> None:
        """Have `reader` follow the live tapes of neighbors of the jobs in `directories`. Searches once a second.

        Args:
            reader: Reads the tapes.
            directories: Job directories of the agent; all belong to `owner`.
            owner: User id.
        """
        if time.monotonic() - self._searched_at < SEARCH_S:
            return
        self._searched_at = time.monotonic()
        tapes = [tape for tape in reader.tapes if tape.path.parent in directories]
        own_worlds = worlds_beside((tape.path for tape in tapes), owner)
        waiting = _waiting_launches(tapes)
        if not own_worlds and not waiting:
            return
        for base in {directory.parent for directory in directories}:
            for directory in job_directories(base):
                if directory in self._tapes or directory in directories:
                    continue
                paths = tapes_in(directory)
                if own_worlds & worlds_beside(paths, owner):
                    self._add(directory, owner, "its ranks are in a world with processes of another job")
                elif any(launch.may_be_completed_by(paths, owner) for launch in waiting):
                    self._add(directory, owner, "its launch lacks ranks that may wait elsewhere")
        for neighbor in self._tapes.values():
            self._follow(neighbor, reader)

    def _add(self, directory: Path, owner: int, why: str) -> None:
        if len(self._tapes) < MAX_NEIGHBORS:
            self._tapes[directory] = LocalTapes(directory, owner)
            _logger.info("%s: watching %s too", why, directory)

    def _follow(self, tapes: LocalTapes, reader: Reader) -> None:
        room = MAX_TAPES - reader.neighbors
        for tape in tapes.new(only_alive=True, most=room) if room > 0 else ():
            if reader.knows(tape.identity.nonce):
                tape.close()
            else:
                reader.follow(tape, exported=False, is_neighbor=True)


class _Launch(NamedTuple):
    """An incomplete launch.

    Attributes:
        world_size: Number of ranks of the complete launch.
        ranks: Ranks that have started.
    """

    world_size: int
    ranks: frozenset[int]

    def may_be_completed_by(self, paths: Sequence[Path], owner: int) -> bool:
        """Return whether the live tapes of another job are a launch that waits too and has only missing ranks."""
        living: list[TapeReader] = []
        with contextlib.ExitStack() as stack:
            for path in paths[:MAX_TAPES]:
                with contextlib.suppress(TapeError):
                    tape = stack.enter_context(contextlib.closing(TapeReader(path, owner)))
                    if tape.is_alive():
                        living.append(tape)
            launches = _waiting_launches(living)
        return len(launches) == 1 and self.world_size == launches[0].world_size and not self.ranks & launches[0].ranks


def _waiting_launches(tapes: Iterable[TapeReader]) -> list[_Launch]:
    """Return the launches that have waited for ranks for `WAITED_NS`. A rank with a run id is past its launch."""
    launching: dict[Path, list[TapeReader]] = {}
    for tape in tapes:
        launching.setdefault(tape.path.parent, []).append(tape)
    now_ns = time.monotonic_ns()
    waiting: list[_Launch] = []
    for group in launching.values():
        identities = [tape.identity for tape in group]
        size, ranks = identities[0].world_size, frozenset(identity.rank for identity in identities)
        has_waited = now_ns - max(identity.monotonic_ns for identity in identities) >= WAITED_NS
        if has_waited and len(ranks) < size and not any(tape.status().run_id for tape in group):
            waiting.append(_Launch(size, ranks))
    return waiting
