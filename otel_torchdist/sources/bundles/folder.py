"""The directory of bundles: each appears whole or not at all, and all of them together stay within a bound.

The bound counts the bundles of this user, of all nodes and jobs: the names of pods change, and the directory outlives
them. Nodes that write at the same moment may exceed it by the bundles that they are writing.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import socket
import stat
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from otel_torchdist.errors import TorchDistError
from otel_torchdist.node.job.bundled import PREFIX, SUFFIX
from otel_torchdist.sources.bundles.content import BundleContent, pack
from otel_torchdist.tape.identity import process_start_ticks

SHARE: Final = 2
"""A single bundle takes at most 1/SHARE of the bound, so that an earlier one stays beside it."""
NEWEST: Final = (None, 4096, 1024, 256, 64)
"""Records of each tape that are kept, tried in this order until the bundle is small enough."""
ABANDONED_S: Final = 600.0
"""Age of an unfinished bundle of another node after which its writer counts as gone."""
_UNUSUAL: Final = re.compile(r"[^A-Za-z0-9.-]")
_MAX_HOST: Final = 64


class BundleTooLargeError(TorchDistError):
    """Even the newest records of a job do not fit into the directory's bound."""


def host_name() -> str:
    """Return the name of this node as it appears in file names."""
    return _UNUSUAL.sub("_", socket.gethostname()[:_MAX_HOST]) or "host"


@dataclass(frozen=True, slots=True)
class _StoredBundle:
    changed_ns: int
    path: Path
    size: int


class BundleFolder:
    """A directory of bundles."""

    def __init__(self, directory: Path, max_bytes: int) -> None:
        """Use a directory, which is created with the first bundle.

        Args:
            directory: The directory; others may use it too.
            max_bytes: Upper bound on the bytes of this user's bundles in it.
        """
        self._directory = directory
        self._max_bytes = max_bytes

    def write(self, evidence: BundleContent) -> Path:
        """Write a bundle; return its path.

        Raises:
            OSError: The directory cannot be written to.
            BundleTooLargeError: It does not fit.
        """
        self._directory.mkdir(parents=True, exist_ok=True)
        self._remove_abandoned()
        name = _name_of(evidence)
        part = self._directory / f".{name}.{os.getpid()}-{process_start_ticks(os.getpid()) or 0}.part"
        try:
            for newest in NEWEST:
                with contextlib.suppress(BundleTooLargeError):
                    self._write_part(part, name, evidence, newest)
                    path = self._free_path(name)
                    part.rename(path)
                    _sync(self._directory, os.O_RDONLY | os.O_DIRECTORY)
                    return path
        finally:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)
        raise BundleTooLargeError(f"even the newest {NEWEST[-1]} records of each tape need more than the bound allows")

    def _free_path(self, name: str) -> Path:
        """Return a path that no bundle has: jobs of one node may end in the same second."""
        names = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
        return next(path for each in names if not (path := self._directory / f"{each}{SUFFIX}").exists())

    def has_incident(self, evidence: BundleContent) -> bool:
        """Return whether this node has a bundle of the same incident already."""
        manifest = evidence.manifest
        pattern = f"{PREFIX}*-{manifest.run[:8]}-*-{manifest.trace_id[:8]}-{host_name()}{SUFFIX}"
        return bool(manifest.trace_id) and any(self._directory.glob(pattern))

    def _write_part(self, part: Path, name: str, evidence: BundleContent, newest: int | None) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        part.unlink(missing_ok=True)
        file = os.open(part, flags, 0o600)
        try:
            pack(_BoundedFile(file, self, part), name, evidence, newest)
            os.fsync(file)
        finally:
            os.close(file)

    def make_room(self, size: int, own: Path) -> int:
        """Remove this user's oldest bundles until a bundle of this size fits; return the size up to which it may grow.

        Args:
            size: Bytes.
            own: The unfinished bundle, which is not counted.

        Raises:
            BundleTooLargeError: It does not fit.
        """
        most = self._max_bytes // SHARE
        if size > most:
            raise BundleTooLargeError
        stored = sorted((bundle for bundle in self._stored() if bundle.path != own), key=lambda each: each.changed_ns)
        total = sum(bundle.size for bundle in stored)
        for bundle in stored:
            if total + size <= self._max_bytes:
                break
            if bundle.path.name.endswith(SUFFIX):
                bundle.path.unlink(missing_ok=True)
                total -= bundle.size
        return min(self._max_bytes - total, most)

    def _stored(self) -> list[_StoredBundle]:
        """Return this user's bundles, finished or not."""
        stored: list[_StoredBundle] = []
        with os.scandir(self._directory) as entries:
            for entry in entries:
                if not entry.name.lstrip(".").startswith(PREFIX):
                    continue
                with contextlib.suppress(FileNotFoundError):  # removed by another node
                    info = entry.stat(follow_symlinks=False)
                    if stat.S_ISREG(info.st_mode) and info.st_uid == os.geteuid():
                        stored.append(_StoredBundle(info.st_mtime_ns, self._directory / entry.name, info.st_size))
        return stored

    def _remove_abandoned(self) -> None:
        """Remove unfinished bundles whose writer was killed."""
        for bundle in self._stored():
            if bundle.path.name.endswith(".part") and not _is_being_written(bundle):
                bundle.path.unlink(missing_ok=True)


class _BoundedFile:
    """An unfinished bundle that makes room as it grows."""

    def __init__(self, file: int, folder: BundleFolder, path: Path) -> None:
        self._file = file
        self._folder = folder
        self._path = path
        self._size = self._room = 0

    def write(self, content: bytes, /) -> int:
        """Write all bytes."""
        self._size += len(content)
        if self._size > self._room:
            self._room = self._folder.make_room(self._size, self._path)
        view = memoryview(content)
        while view:
            view = view[os.write(self._file, view) :]
        return len(content)

    def flush(self) -> None:
        """Nothing is buffered."""


def _name_of(evidence: BundleContent) -> str:
    """Return the file's name, which sorts by time.

    An example: `torchdist-bundle-20261130-140501-1a2b3c4d-verdict-absent-9f8e7d6c-node7`.
    """
    manifest = evidence.manifest
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    parts = stamp, manifest.run[:8], manifest.reason, manifest.verdict, manifest.trace_id[:8], host_name()
    return PREFIX + "-".join(filter(None, parts))


def _is_being_written(bundle: _StoredBundle) -> bool:
    match = re.search(r"\.([0-9]+)-([0-9]+)\.part$", bundle.path.name)
    if match is None:
        return False
    if bundle.path.name[: match.start()].endswith(f"-{host_name()}"):
        return process_start_ticks(int(match[1])) == int(match[2])
    return time.time_ns() - bundle.changed_ns < ABANDONED_S * 1e9


def _sync(path: Path, flags: int) -> None:
    with contextlib.suppress(OSError):  # some network file systems refuse it for directories
        file = os.open(path, flags | os.O_CLOEXEC)
        try:
            os.fsync(file)
        finally:
            os.close(file)
