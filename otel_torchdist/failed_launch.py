"""Holds the end of a launcher whose ranks have failed until the agent has said why, for a second at most.

A notice comes half a second after a death. By then the launcher would be gone, and with it a pipe or a terminal that
only it held open. torchrun, `accelerate launch` and parents of `torch.multiprocessing.spawn` import torch, and so come
by here. The wait is at the very end of the process: tracebacks, error files and exit codes are as they were. A launch
that ends well only has two wrapped constructors of exceptions.
"""

from __future__ import annotations

import functools
import os
import sys
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from otel_torchdist import guard

if TYPE_CHECKING:
    from pathlib import Path

    from otel_torchdist.config import Config
    from otel_torchdist.tape.identity import TapeIdentity

_ELASTIC: Final = "torch.distributed.elastic.multiprocessing.errors"
WAIT_S: Final = 1.0
"""How long after a failure to wait for an agent that reads."""
START_S: Final = 3.0
"""How long to wait for an agent that is only starting: it takes a second or two, and the ranks had none until then."""
_STARTS_NS: Final = 10_000_000_000
_PAUSE_S: Final = 0.02
_where: Final = "the end of a launch"


def watch(imported: object) -> None:
    """Watch for failures of ranks: a module that reports them to launchers has just been imported."""
    module: Any = imported
    with guard.guarded(_where):
        if module.__name__ == _ELASTIC:
            _follow(module.ChildFailedError, lambda error: [one.pid for one in error.failures.values()])
        else:
            _follow(module.ProcessException, lambda error: [error.error_pid])


def _follow(error_class: Any, pids_of: Callable[[Any], Iterable[int]]) -> None:
    original, launch = error_class.__init__, _Launch()

    @functools.wraps(original)
    def __init__(error: Any, *args: Any, **kwargs: Any) -> None:
        original(error, *args, **kwargs)
        with guard.guarded(_where):
            launch.note_failure(pids_of(error))

    error_class.__init__ = __init__


class _Launch:
    """The ranks that this process has started."""

    def __init__(self) -> None:
        self._since_ns = time.monotonic_ns()
        self._failed_s = 0.0
        self._pids: set[int] = set()

    def note_failure(self, pids: Iterable[int]) -> None:
        """Have the end of this process wait for what is said of these ranks, if it comes soon."""
        # Imported only where ranks have failed.
        from otel_torchdist.this_process.end import ProcessEnd

        if not self._pids:
            ProcessEnd(self._end).arm()
        self._failed_s = time.monotonic()
        self._pids.update(pids)

    def _end(self) -> None:
        if time.monotonic() - self._failed_s > WAIT_S:  # the program has handled it
            return
        try:
            with guard.guarded(_where):
                self._wait()
        except KeyboardInterrupt:
            return

    def _wait(self) -> None:
        from otel_torchdist.config import Config
        from otel_torchdist.job.concluded import concluded_ns

        config = Config.from_environment()
        if not config.announce or config.sdk_disabled:
            return
        directory, created_ns = self._job(config)
        if directory is None:
            return
        due_s = self._failed_s + _patience_s(directory, config)
        while not _say(directory) and concluded_ns(directory) < created_ns and time.monotonic() < due_s:
            time.sleep(_PAUSE_S)
        _say(directory)

    def _job(self, config: Config) -> tuple[Path | None, int]:
        """Return the job directory of the ranks that have failed, and when the newest of their tapes was created."""
        from otel_torchdist.job.directory import job_directories, tapes_in
        from otel_torchdist.job.runs.runs import tape_directory

        base = tape_directory(config)
        for directory in job_directories(base):
            created = [found.monotonic_ns for tape in tapes_in(directory) if (found := self._identity_of(tape))]
            if created:
                return directory, max(created)
        return None, 0

    def _identity_of(self, tape: Path) -> TapeIdentity | None:
        """Return the identity of a tape if one of the ranks that have failed has written it."""
        from otel_torchdist.errors import TapeError
        from otel_torchdist.files.others import read_part
        from otel_torchdist.tape.identity import decode_identity, shares_pids
        from otel_torchdist.tape.layout import IDENTITY_SIZE

        try:
            found = decode_identity(read_part(tape, 0, IDENTITY_SIZE), str(tape))
        except (OSError, TapeError):
            return None
        is_ours = found.pid in self._pids and found.monotonic_ns >= self._since_ns and shares_pids(found)
        return found if is_ours else None


def _patience_s(directory: Path, config: Config) -> float:
    """Return how long to wait for what an agent says; one is started if the ranks had no time to do so."""
    from otel_torchdist.agent.launch.keeper import is_read, newest_start_ns, start_agent
    from otel_torchdist.config import ReaderHome
    from otel_torchdist.switch import exports_itself

    if is_read(directory):
        return WAIT_S
    if config.reader is not ReaderHome.AGENT or exports_itself(os.environ):
        return 0
    if time.monotonic_ns() - newest_start_ns(directory) > _STARTS_NS:
        start_agent(directory)
    return START_S


def _say(directory: Path) -> bool:
    """Write what an agent could not write; returns whether there was something."""
    from otel_torchdist.job.left_notices import take_notices

    texts = take_notices(directory) if sys.stderr is not None else []  # pyright: ignore[reportUnnecessaryComparison]
    for text in texts:
        print(text.decode(errors="replace"), end="", file=sys.stderr, flush=True)
    return bool(texts)
