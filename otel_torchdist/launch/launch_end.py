"""Delays the exit of a launcher whose ranks have failed, for a few seconds, until the agent announces the cause.

The notice comes half a second after a death. Without the delay, the launcher would have exited by then, and its pipe or
terminal would be closed. The launcher also knows the exit codes of its ranks, which an agent that starts later does
not. The wait is at the very end of the process: tracebacks, error files and exit codes are unchanged.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, TypeAlias

from otel_torchdist import guard
from otel_torchdist.config import Config
from otel_torchdist.system.this_process.end import ProcessEnd

if TYPE_CHECKING:
    from pathlib import Path

    from otel_torchdist.tape.identity import TapeIdentity

WAIT_S: Final = 2.0
"""Seconds to wait after a failure for a running agent. Its notice comes half a second after a death."""
START_S: Final = 4.0
"""Seconds to wait for an agent that is starting, which takes a second or two."""
BUNDLE_S: Final = 5.0
"""Seconds to wait for the bundle of evidence after that. It takes half a second on a disk."""
_RESTART_AFTER_NS: Final = 10_000_000_000
"""Age at which an agent that has been started, but does not read, has failed."""
_POLL_S: Final = 0.02
_SIGTERM_GRACE_NS: Final = 30_000_000_000
"""Time between SIGTERM and SIGKILL in torchrun."""
_CONTEXT: Final = "the end of a launch"


Codes: TypeAlias = Mapping[int, "int | None"]
"""Exit codes by pid, as in `multiprocessing`: negative for a signal, None while the process runs."""


class LaunchEnd:
    """The delayed end of a launcher whose ranks have failed."""

    def __init__(self) -> None:
        """Initialize without a delay."""
        self._failed_s = 0.0
        self._wait: Callable[[], object] | None = None

    def delay_exit(self, codes: Codes, since_ns: int) -> None:
        """Record the exit statuses of the ranks, and delay the end of this process until the cause is announced.

        Args:
            codes: Their exit codes, by pid.
            since_ns: Earliest start of the ranks, on the monotonic clock.
        """
        self._failed_s = time.monotonic()
        config = Config.from_environment()
        waits = config.announce or config.bundles is not None
        tapes = _tapes_of(codes, since_ns, config) if waits and not config.sdk_disabled else {}
        if not tapes:
            return
        directory = next(iter(tapes)).parent
        created_ns = max(identity.monotonic_ns for identity in tapes.values())
        _record_ends(tapes, codes, since_ns)
        if self._wait is None:
            ProcessEnd(self._wait_at_exit).arm()
        self._wait = functools.partial(_wait, directory, created_ns, self._failed_s, config)

    def _wait_at_exit(self) -> None:
        if self._wait is None or time.monotonic() - self._failed_s > WAIT_S:  # the program has handled the failure
            return
        try:
            with guard.guarded(_CONTEXT):
                self._wait()
        except KeyboardInterrupt:
            return


def _tapes_of(codes: Codes, since_ns: int, config: Config) -> dict[Path, TapeIdentity]:
    """Return the tapes of processes that this process has started, all in one job directory."""
    from otel_torchdist.errors import TapeError
    from otel_torchdist.node.job.directory import job_directories, tapes_in
    from otel_torchdist.node.job.runs.runs import tape_directory
    from otel_torchdist.system.files.others import read_part
    from otel_torchdist.tape.identity import decode_identity, shares_pids
    from otel_torchdist.tape.layout import IDENTITY_SIZE

    tapes: dict[Path, TapeIdentity] = {}
    try:
        base = tape_directory(config)
    except TapeError:  # the ranks have warned
        return tapes
    for directory in job_directories(base):
        for tape in tapes_in(directory):
            try:
                identity = decode_identity(read_part(tape, 0, IDENTITY_SIZE), str(tape))
            except (OSError, TapeError):
                continue
            if identity.pid in codes and identity.monotonic_ns >= since_ns and shares_pids(identity):
                tapes[tape] = identity
        if tapes:
            break
    return tapes


def _record_ends(tapes: Mapping[Path, TapeIdentity], codes: Codes, since_ns: int) -> None:
    """Record the exit statuses of ranks that no agent has watched. The order of the deaths is unknown."""
    from otel_torchdist.model.rank_state.lives import Death
    from otel_torchdist.node.job.runs.lives import read_death, write_death

    now_ns = time.monotonic_ns()
    for tape, identity in tapes.items():
        code = codes[identity.pid]
        if code is None or read_death(tape) is not None:
            continue
        status = -code if code < 0 else code << 8
        # Launchers send SIGKILL only to ranks that survived SIGTERM for half a minute.
        survives_sigterm = now_ns - since_ns > _SIGTERM_GRACE_NS
        with contextlib.suppress(OSError):  # no space
            write_death(tape, Death(now_ns, now_ns - since_ns, status, survives_sigterm=survives_sigterm))


def _wait(directory: Path, created_ns: int, failed_s: float, config: Config) -> None:
    """Wait for an agent's announcement of an attempt, and print notices that the agent cannot print.

    Args:
        directory: The job directory.
        created_ns: Creation time of the attempt's newest tape.
        failed_s: Time at which this process learned of the failure, on the monotonic clock.
        config: The settings.
    """
    from otel_torchdist.node.job.agent_notes import concluded_ns

    timeout_s = _timeout_s(directory, config)
    if not timeout_s:
        if config.announce:
            _judge(directory, created_ns, config)
        return
    while (
        not _print_notices(directory)
        and concluded_ns(directory) < created_ns
        and time.monotonic() < failed_s + timeout_s
    ):
        time.sleep(_POLL_S)
    _print_notices(directory)
    if config.bundles is not None:
        _wait_for_bundle(directory, created_ns)


def _wait_for_bundle(directory: Path, created_ns: int) -> None:
    """Wait for the bundle of an attempt: with this process, a container and its agent may end."""
    from otel_torchdist.agent.launch.keeper import is_read
    from otel_torchdist.node.job.agent_notes import bundled_ns

    deadline = time.monotonic() + BUNDLE_S
    while bundled_ns(directory) < created_ns and is_read(directory) and time.monotonic() < deadline:
        time.sleep(_POLL_S)


def _timeout_s(directory: Path, config: Config) -> float:
    """Return the seconds to wait for an agent; 0 without an agent.

    Start an agent if the ranks ended before they could start one.
    """
    from otel_torchdist.agent.launch.keeper import is_read, newest_start_ns, start_agent
    from otel_torchdist.config import ReaderHome, declared_files
    from otel_torchdist.launch.switch import exports_itself

    if is_read(directory):
        return WAIT_S
    if config.reader is not ReaderHome.AGENT or exports_itself(os.environ, declared_files(os.environ)):
        return 0
    if time.monotonic_ns() - newest_start_ns(directory) > _RESTART_AFTER_NS:
        start_agent(directory)
    return START_S


def _judge(directory: Path, created_ns: int, config: Config) -> None:
    """Announce the verdict of `diagnose`, if all ranks ran on this node and no agent has announced a verdict."""
    from otel_torchdist.judge.stall.reporting.attributes import notice_lines
    from otel_torchdist.judge.verdict.rules import StallRules
    from otel_torchdist.node.job.agent_notes import has_announced_since
    from otel_torchdist.node.job.runs.runs import index_of
    from otel_torchdist.runs.diagnosis.diagnosis import diagnose_run

    runs = [
        run for run in index_of([directory]).runs if created_ns in [tape.identity.monotonic_ns for tape in run.tapes]
    ]
    if not runs or has_announced_since(directory, max(tape.identity.realtime_ns for tape in runs[0].tapes)):
        return
    diagnosis = diagnose_run(runs[0], StallRules.from_config(config))
    if diagnosis.post_mortem.verdict is not None and not diagnosis.post_mortem.unseen:
        _print("".join(f"{line}\n" for line in notice_lines(diagnosis.verdict_text, runs[0].run_id, directory)))


def _print_notices(directory: Path) -> bool:
    """Print notices that an agent could not print. Return whether there were any."""
    from otel_torchdist.node.job.agent_notes import take_notices

    texts = take_notices(directory) if _has_stderr() else []
    for text in texts:
        _print(text.decode(errors="replace"))
    return bool(texts)


def _has_stderr() -> bool:
    return sys.stderr is not None  # pyright: ignore[reportUnnecessaryComparison]


def _print(text: str) -> None:
    if _has_stderr():
        print(text, end="", file=sys.stderr, flush=True)
