"""Bundles the evidence of this node into one archive, for later analysis or for another machine."""

from __future__ import annotations

import io
import logging
import os
import socket
import stat
import tarfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from otel_torchdist.agent.actions.stalled_run import StalledRun
from otel_torchdist.errors import TapeError
from otel_torchdist.node.job.directory import private_directory
from otel_torchdist.system.files.others import read_part
from otel_torchdist.system.files.owned import create_anew

RECORDER_S: Final = 3.0
"""Seconds for NCCL's flight recorder to write its files."""
MAX_FILE_BYTES: Final = 256 << 20
MAX_BUNDLES: Final = 16
"""Bundles of this node to keep in the directory; older ones are deleted."""
_PREFIX: Final = "torchdist-stall-"
_PIPE: Final = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"
_FILES: Final = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")

_logger = logging.getLogger("otel_torchdist")


def dump(stall: StalledRun, directory: Path, environ: Mapping[str, str]) -> str:
    """Write the bundle; return the outcome as text.

    The bundle contains the verdict (`verdict.json`), the agent's log, and this node's tapes with their name tables and
    stacks, in the layout that `otel-torchdist diagnose --run-dir` reads. If the job has set up a pipe to the thread of
    NCCL's flight recorder, the recorder is asked to write its files, and the bundle contains these too.

    Raises:
        OSError: The bundle cannot be written.
        TapeError: The directory does not belong to this user.
    """
    private_directory(directory)
    recorded = _flight_recorder_files(stall, environ)
    stamp = time.strftime("%Y%m%d-%H%M%S")
    name = f"{_PREFIX}{stamp}-{stall.run[:8]}-{stall.trace_id[:8]}-{socket.gethostname()}"
    path = directory / f"{name}.tar.gz"
    hidden = directory / f".{name}.new"
    try:
        with (
            open(create_anew(hidden, parent_may_be_link=True), "wb") as stream,
            tarfile.open(fileobj=stream, mode="w:gz", compresslevel=1) as bundle,
        ):
            _add(bundle, f"{name}/verdict.json", stall.to_json().encode())
            for file in sorted(stall.directory.iterdir()):
                if _is_evidence(file):
                    _add_file(bundle, f"{name}/{stall.directory.name}/{file.name}", file)
            for file in recorded:
                _add_file(bundle, f"{name}/flight-recorder/{file.name}", file)
        hidden.rename(path)
    finally:
        hidden.unlink(missing_ok=True)
    # Only this node's bundles: others may write to the same directory.
    for old in sorted(directory.glob(f"{_PREFIX}*-{socket.gethostname()}.tar.gz"))[:-MAX_BUNDLES]:
        old.unlink(missing_ok=True)
    return f"wrote {path}"


def objection_to(directory: Path) -> str:
    """Return why no bundle can be written to a directory; '' if no obstacle is found. Creates nothing."""
    try:
        if os.path.lexists(directory):
            private_directory(directory)
            return ""
    except (OSError, TapeError) as error:
        return str(error)
    above = next((path for path in directory.parents if path.exists()), directory)
    if os.access(above, os.W_OK | os.X_OK):
        return ""
    return f"{directory}: cannot be created: no permission to write to {above}"


def _is_evidence(file: Path) -> bool:
    """Return whether a file of the job directory belongs in the bundle; the run's secret token does not."""
    is_result = file.name.startswith(("verdict-", "findings-"))
    is_evidence = is_result or file.suffix in (".tape", ".names", ".stacks", ".fault", ".death", ".log")
    return is_evidence and file.is_file() and not file.is_symlink()


def _add_file(bundle: tarfile.TarFile, name: str, file: Path) -> None:
    """Add a file at its current length, because ranks keep writing to it."""
    try:
        content = read_part(file, 0, MAX_FILE_BYTES, os.geteuid())
    except OSError as error:
        _logger.warning("%s is missing from the bundle: %s", file, error)
        return
    _add(bundle, name, content)


def _add(bundle: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode, entry.mtime = len(content), 0o600, int(time.time())
    bundle.addfile(entry, io.BytesIO(content))


def _flight_recorder_files(stall: StalledRun, environ: Mapping[str, str]) -> list[Path]:
    """Ask NCCL's flight recorder, through its pipe, to write its files again; return the files that exist."""
    ranks = stall.local_ranks
    requested_at = time.time()
    requested = [rank for rank in ranks if _request_dump(environ.get(_PIPE, ""), rank)]
    prefixes = _prefixes(environ)
    deadline = time.monotonic() + RECORDER_S
    while time.monotonic() < deadline and not all(_has_written(prefixes, rank, requested_at) for rank in requested):
        time.sleep(0.1)
    files = [Path(f"{prefix}{rank}") for prefix in prefixes for rank in ranks]
    return [file for file in files if _is_own_file(file)]


def _prefixes(environ: Mapping[str, str]) -> list[str]:
    """Return the path prefixes of NCCL's flight recorder: the configured one, else the defaults of torch's versions."""
    configured = [environ[name] for name in _FILES if environ.get(name)]
    cache = environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return configured[:1] or [f"{cache}/torch/comm_lib_trace_rank_", "/tmp/nccl_trace_rank_"]


def _has_written(prefixes: list[str], rank: int, since: float) -> bool:
    return any(_is_newer(Path(f"{prefix}{rank}"), since) for prefix in prefixes)


def _is_own_file(file: Path) -> bool:
    """Return whether a path is a regular file of this user: anyone may create files in /tmp."""
    try:
        info = file.lstat()
    except OSError:
        return False
    return stat.S_ISREG(info.st_mode) and info.st_uid == os.geteuid()


def _request_dump(prefix: str, rank: int) -> bool:
    """Write to the pipe of a rank's flight recorder; calls no code in the rank itself."""
    if not prefix:
        return False
    try:
        pipe = os.open(f"{prefix}{rank}.pipe", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        return stat.S_ISFIFO(os.fstat(pipe).st_mode) and os.write(pipe, b"1\n") > 0
    except OSError:
        return False
    finally:
        os.close(pipe)


def _is_newer(file: Path, than: float) -> bool:
    try:
        return file.stat().st_mtime >= than
    except OSError:
        return False
