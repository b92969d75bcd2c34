"""Publishes the address of a job's `/metrics`, for Prometheus's file-based service discovery.

There is one file per job in `<base>/prometheus/`, because the pattern of `file_sd_configs` allows a `*` only in its
last part:
`files: [/dev/shm/otel-torchdist-1000/prometheus/*.json]`.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import logging
import os
import re
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from otel_torchdist.node.job.directory import READER_LOCK_NAME
from otel_torchdist.node.job.tapes import live_jobs
from otel_torchdist.system.files.locks import is_locked_elsewhere
from otel_torchdist.system.files.others import read_regular
from otel_torchdist.system.files.owned import make_directory, remove, replace_at_once
from otel_torchdist.tape.names.decoding import DecodingError, decode_json

FOLDER: Final = "prometheus"
MAX_BYTES: Final = 65_536
_PORT: Final = re.compile("[0-9]{1,5}")
"""Matches a port. `str.isdecimal` would accept digits of other scripts, and any number of them."""

_logger = logging.getLogger("otel_torchdist")


@dataclass(frozen=True, slots=True)
class _Target:
    """The relevant part of an entry of the file."""

    targets: tuple[str, ...]


class ScrapeTarget:
    """The service discovery file of one job directory."""

    def __init__(self, job_directory: Path, owner: int | None = None) -> None:
        """Name the file.

        Args:
            job_directory: The job directory.
            owner: Required owner of the file and of the base directory; None for the user of this process.
        """
        self._owner = os.geteuid() if owner is None else owner
        self._job = job_directory.name
        self._path = job_directory.parent / FOLDER / f"{self._job}.json"

    def last_target(self) -> str:
        """Return host and port of the agent, or of an agent that died before removing the file; '' if there is none."""
        try:
            content = read_regular(self._path, MAX_BYTES, self._owner)
            return decode_json(content, tuple[_Target, ...])[0].targets[0]
        except (OSError, DecodingError, LookupError):
            return ""

    def last_port(self) -> int | None:
        """Return the port of a dead agent, so that the next agent can keep it."""
        port = self.last_target().rpartition(":")[2]
        return int(port) if _PORT.fullmatch(port) and 0 < int(port) < 1 << 16 else None

    def publish(self, host: str, port: int) -> None:
        """Write the file; a failure is logged as one warning."""
        target = {"targets": [f"{reachable(host)}:{port}"], "labels": {"torchdist_job": self._job}}
        hidden = self._path.with_name(f".{self._job}.new")
        try:
            make_directory(self._path.parent, 0o755, self._owner)
            content = json.dumps([target]).encode() + b"\n"
            replace_at_once(self._path, hidden, content, 0o644, self._owner, accept_own=True)
        except OSError as error:
            _logger.warning("%s: the address of /metrics cannot be published: %s", self._path, error)

    def withdraw(self) -> None:
        """Remove the file."""
        with contextlib.suppress(OSError):
            remove(self._path, self._owner, accept_own=True)


def reachable(host: str) -> str:
    """Return a host to connect to. Replaces wildcard addresses."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if address.is_unspecified:
        return socket.gethostname()
    return f"[{host}]" if address.version == 6 else host


def withdraw_stale(base: Path) -> None:
    """Remove the files of ended jobs whose agents died, for example when a whole cgroup was killed.

    While a rank is alive, the file stays, because its next agent should take the same port.
    """
    jobs = live_jobs(base)
    live = {directory.name for directory in (*jobs.live, *jobs.unchecked)}
    if base in jobs.unchecked:
        return
    with contextlib.suppress(OSError), os.scandir(base / FOLDER) as entries:
        for entry in entries:
            job = entry.name.removesuffix(".json")
            if job != entry.name and job not in live and not _is_read(base / job):
                (base / FOLDER / entry.name).unlink(missing_ok=True)


def _is_read(directory: Path) -> bool:
    """Return whether an agent reads the tapes of a job directory, or may be about to."""
    try:
        file = os.open(directory / READER_LOCK_NAME, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return directory.is_dir()
    try:
        return is_locked_elsewhere(file)
    finally:
        os.close(file)
