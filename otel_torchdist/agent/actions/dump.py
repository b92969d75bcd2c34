"""The action `dump`: a bundle of evidence on request, with the files of NCCL's flight recorder."""

from __future__ import annotations

import os
import socket
import stat
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from otel_torchdist.agent.actions.stalled_run import StalledRun
from otel_torchdist.errors import TapeError
from otel_torchdist.node.job.bundled import FORMAT, BundleManifest, BundleReason
from otel_torchdist.node.job.directory import private_directory
from otel_torchdist.sources.bundles.content import BundleContent, pack
from otel_torchdist.system.files.owned import create_anew

RECORDER_S: Final = 3.0
"""Seconds for NCCL's flight recorder to write its files."""
MAX_BUNDLES: Final = 16
"""Bundles of this node to keep in the directory; older ones are deleted."""
_PREFIX: Final = "torchdist-stall-"
_PIPE_VARIABLE: Final = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"
_FILE_VARIABLES: Final = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")


def dump(stall: StalledRun, directory: Path, environ: Mapping[str, str]) -> str:
    """Write the bundle; return the outcome as text.

    It is a bundle as in `sources/bundles`, written on request into a directory of its own. If the job has set up a pipe
    to the thread of NCCL's flight recorder, the recorder is asked to write its files, and the bundle contains these.

    Raises:
        OSError: The bundle cannot be written.
        TapeError: The directory does not belong to this user.
    """
    private_directory(directory)
    recorder_files = {f"flight-recorder/{file.name}": file for file in _flight_recorder_files(stall, environ)}
    stamp = time.strftime("%Y%m%d-%H%M%S")
    name = f"{_PREFIX}{stamp}-{stall.run[:8]}-{stall.trace_id[:8]}-{socket.gethostname()}"
    path = directory / f"{name}.tar.gz"
    hidden = directory / f".{name}.new"
    manifest = BundleManifest(
        FORMAT, stall.run, socket.gethostname(), BundleReason.DUMP.value, stall.verdict, stall.trace_id
    )
    try:
        with open(create_anew(hidden, parent_may_be_link=True), "wb") as stream:
            pack(stream, name, BundleContent(stall.directory, manifest, stall.to_json(), more=recorder_files))
        hidden.rename(path)
    finally:
        hidden.unlink(missing_ok=True)
    # Only this node's bundles: other nodes may write to the same directory.
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
    existing_parent = next((path for path in directory.parents if path.exists()), directory)
    if os.access(existing_parent, os.W_OK | os.X_OK):
        return ""
    return f"{directory}: cannot be created: no permission to write to {existing_parent}"


def _flight_recorder_files(stall: StalledRun, environ: Mapping[str, str]) -> list[Path]:
    """Ask NCCL's flight recorder, through its pipe, to write its files again; return the files that exist."""
    ranks = stall.local_ranks
    requested_at_s = time.time()
    requested = [rank for rank in ranks if _request_dump(environ.get(_PIPE_VARIABLE, ""), rank)]
    prefixes = _prefixes(environ)
    deadline = time.monotonic() + RECORDER_S
    while time.monotonic() < deadline and not all(_has_written(prefixes, rank, requested_at_s) for rank in requested):
        time.sleep(0.1)
    files = [Path(f"{prefix}{rank}") for prefix in prefixes for rank in ranks]
    return [file for file in files if _is_own_file(file)]


def _prefixes(environ: Mapping[str, str]) -> list[str]:
    """Return the path prefixes of NCCL's flight recorder: the configured one, else the defaults of torch's versions."""
    configured = [environ[name] for name in _FILE_VARIABLES if environ.get(name)]
    cache = environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return configured[:1] or [f"{cache}/torch/comm_lib_trace_rank_", "/tmp/nccl_trace_rank_"]


def _has_written(prefixes: list[str], rank: int, since_s: float) -> bool:
    return any(_is_modified_since(Path(f"{prefix}{rank}"), since_s) for prefix in prefixes)


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


def _is_modified_since(file: Path, time_s: float) -> bool:
    try:
        return file.stat().st_mtime >= time_s
    except OSError:
        return False
