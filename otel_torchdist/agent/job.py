"""One job directory as an agent reads it: its lock, its tapes, and how far they have been read."""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path
from typing import Final

from otel_torchdist.agent.reading import checkpoint
from otel_torchdist.agent.reading.checkpoint import Checkpoint
from otel_torchdist.agent.reading.reader import Reader
from otel_torchdist.errors import TapeError, TorchDistError
from otel_torchdist.files.others import reason
from otel_torchdist.files.owned import directory_facts
from otel_torchdist.job.runs.membership import RunMember, of_living_runs
from otel_torchdist.job.runs.runs import member_of
from otel_torchdist.job.tapes import ReaderLock
from otel_torchdist.tape.reading.reader import TapeReader

READ_BY_ANOTHER: Final = "another process reads these tapes: an agent, or a rank (OTEL_PYTHON_TORCHDIST_READER=thread)"

REMOVED: Final = (
    "%s was removed while its ranks are running (systemd-logind does that at logout with RemoveIPC=yes, and so do "
    "cleaners of /dev/shm): stalls are still reported, but without stacks; `watch` and `diagnose` do not find the job, "
    "and no other agent can take over from this one"
)

_logger = logging.getLogger("otel_torchdist")


class AgentError(TorchDistError):
    """The tapes of a job directory cannot be read here; the message says which and why."""


class Job:
    """The tapes of one job directory, read by this process alone until `close`.

    Attributes:
        directory: The job directory.
        owner: Id of the user that it belonged to when it was opened. Its path may lead elsewhere at any later moment:
            whatever is read, written or done for the job must be this user's.
        identity: Device and inode of the directory.
        taken_up: Nonces of the tapes that a reader follows or has followed.
    """

    def __init__(self, directory: Path, again: bool = False) -> None:
        """Become the only reader of `directory`.

        Args:
            directory: The job directory.
            again: Read everything on the tapes, whatever an agent has exported before.

        Raises:
            AgentError: Another process reads there, there is no such directory, or we may not write to it.
        """
        self.directory = directory
        try:
            facts = directory_facts(directory)
        except OSError as error:
            raise AgentError(f"{directory}: cannot be read: {reason(error)}") from error
        self.owner, self.identity = facts.st_uid, (facts.st_dev, facts.st_ino)
        self._election = _elected(directory, self.owner)
        try:
            before = Checkpoint() if again else checkpoint.load(directory, self.owner)
        except OSError as error:
            self._election.resign()
            raise AgentError(f"{directory}: cannot be read: {reason(error)}") from error
        self._before = before or Checkpoint()
        self._lacks_checkpoint = before is None
        self._may_hold_exported = not again
        self.taken_up: set[int] = set()
        self._can_write = True

    def take_up(self, reader: Reader, most: int | None = None) -> None:
        """Make `reader` follow the new tapes, at most `most` of them."""
        found = [tape for tape in self._election.tapes.new(only_alive=False, most=most) if not self._is_done(tape)]
        if self._may_hold_exported:
            self._may_hold_exported = False
            found = _not_exported(found, self._lacks_checkpoint)
        for tape in found:
            self._follow(tape, reader)

    def _follow(self, tape: TapeReader, reader: Reader) -> None:
        nonce = tape.identity.nonce
        if reader.knows(nonce):  # only a copy shares another tape's nonce, and it must not replace it
            if nonce not in self.taken_up:  # else it was out of sight for a moment
                self._election.tapes.warn("%s is ignored: another tape with the same name is being read", tape.path)
            tape.close()
            return
        try:
            reader.follow(tape, before=self._before.ranks.get(nonce))
            self.taken_up.add(nonce)
        except TapeError as error:  # removed or damaged since it was opened
            _logger.warning("a tape can no longer be read: %s", error)
            reader.forget(nonce)
        except Exception:
            reader.forget(nonce)
            raise

    def _is_done(self, tape: TapeReader) -> bool:
        if tape.identity.nonce not in self._before.done:
            return False
        tape.close()
        return True

    def save(self, reader: Reader) -> None:
        """Save how far `reader` has come; a failure is logged as one warning."""
        states = {nonce: state for nonce, state in reader.states().items() if nonce in self.taken_up}
        done = self._before.done | (self.taken_up - states.keys())
        try:
            checkpoint.save(self.directory, Checkpoint(states, done), self.owner)
            self._can_write = True
        except OSError as error:
            if self._can_write and not self.directory.exists():
                self._election.tapes.warn(REMOVED, self.directory)
            elif self._can_write:
                self._election.tapes.warn(
                    "%s: the agent's checkpoint cannot be written (%s): an agent that takes over from this one would "
                    "export again what was exported since the last checkpoint",
                    self.directory, error,
                )  # fmt: skip
            self._can_write = False

    def close(self) -> None:
        """Release the directory to other readers."""
        self._election.resign()


def _elected(directory: Path, owner: int) -> ReaderLock:
    try:
        election = ReaderLock(directory, owner)
    except OSError as error:
        raise AgentError(f"{directory}: cannot be read: {reason(error)}") from error
    if election.is_won:
        return election
    election.resign()
    raise AgentError(f"{directory}: {READ_BY_ANOTHER}")


def _not_exported(tapes: list[TapeReader], lacks_checkpoint: bool) -> list[TapeReader]:
    """Return the tapes that this agent has to export, and close the others.

    Left out are those of runs that are over, if their ranks exported them, or if a checkpoint that can no longer be
    read may have said that another agent did.
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
