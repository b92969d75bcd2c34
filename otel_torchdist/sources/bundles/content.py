"""The content of a bundle of evidence: a job directory as one compressed file.

The layout is that of the directory, so `tar xf` and `diagnose --run-dir` read it too. The manifest comes first: a
reader recognizes a bundle by it. Each tape comes before its dictionary, because a rank writes a name before the records
that use it. The state of the processes comes last, after the tapes that it explains.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import logging
import os
import tarfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import IO, Final, Protocol, cast

import msgspec

from otel_torchdist.model.snapshot import RankView
from otel_torchdist.node.job.bundled import MANIFEST_NAME, MOMENT_NAME, BundledMoment, BundleManifest, RunningRank
from otel_torchdist.node.job.directory import is_tape_name
from otel_torchdist.system.files.locks import is_file_locked
from otel_torchdist.system.files.others import changed_ns, read_part, reason
from otel_torchdist.tape.copies import detached

MAX_FILE_BYTES: Final = 256 << 20
_COMPRESSION_LEVEL: Final = 1
_KEPT: Final = (".names", ".stacks", ".fault", ".death", ".description", ".worlds", ".log")
_KEPT_STARTS: Final = ("verdict-", "findings-", "agent.log")

_logger = logging.getLogger("otel_torchdist")


@dataclass(frozen=True, slots=True)
class BundleContent:
    """A job directory to be copied.

    Attributes:
        directory: The job directory.
        manifest: See `BundleManifest`.
        verdict: The verdict as JSON; '' without one.
        views: Ranks of the directory as the agent saw them last, by the nonce of their tape.
        more: Other files: paths by their names in the bundle.
    """

    directory: Path
    manifest: BundleManifest
    verdict: str = ""
    views: Mapping[int, RankView] = field(default_factory=dict[int, RankView])
    more: Mapping[str, Path] = field(default_factory=dict[str, Path])


class Writable(Protocol):
    """A stream of bytes."""

    def write(self, content: bytes, /) -> int:
        """Write everything; return the number of bytes."""
        ...

    def flush(self) -> None:
        """Pass buffered bytes on."""
        ...


def pack(stream: Writable, name: str, evidence: BundleContent, newest: int | None = None) -> None:
    """Write a bundle.

    Args:
        stream: The stream.
        name: Name of the bundle's folder.
        evidence: The job directory.
        newest: Records to keep of each tape; None for all.

    Raises:
        OSError: The stream cannot be written to, or the job directory is gone.
    """
    folder = f"{name}/{evidence.directory.name}"
    manifest = msgspec.structs.replace(
        evidence.manifest, records=newest, written_ns=time.time_ns(), version=package_version()
    )
    with (
        gzip.GzipFile("", "wb", _COMPRESSION_LEVEL, cast("IO[bytes]", stream), mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w") as bundle,
    ):
        _add(bundle, f"{folder}/{MANIFEST_NAME}", msgspec.json.encode(manifest))
        if evidence.verdict:
            _add(bundle, f"{name}/verdict.json", evidence.verdict.encode())
        files = sorted(filter(_is_kept, evidence.directory.iterdir()), key=lambda file: not is_tape_name(file.name))
        running: list[RunningRank] = []
        for file in files:
            if is_tape_name(file.name):
                running += _running(file, evidence.views)
            _add_file(bundle, f"{folder}/{file.name}", file, newest)
        times = {file.name: changed_ns(file) for file in files if not is_tape_name(file.name)}
        moment = BundledMoment(time.monotonic_ns(), tuple(running), times)
        _add(bundle, f"{folder}/{MOMENT_NAME}", msgspec.json.encode(moment))
        for shown, file in evidence.more.items():
            _add_file(bundle, f"{name}/{shown}", file, newest)


def package_version() -> str:
    """Return the version of this package; '' if it is not installed."""
    with contextlib.suppress(PackageNotFoundError):
        return version("otel-torchdist")
    return ""


def _is_kept(file: Path) -> bool:
    """Return whether a file of the job directory belongs in a bundle; the run's secret token does not."""
    is_named = is_tape_name(file.name) or file.suffix in _KEPT or file.name.startswith(_KEPT_STARTS)
    return is_named and not file.name.startswith(".") and file.is_file() and not file.is_symlink()


def _running(tape: Path, views: Mapping[int, RankView]) -> list[RunningRank]:
    """Return the writer of a tape if it is running."""
    with contextlib.suppress(OSError, ValueError):
        nonce = int(tape.stem, 16)
        if is_file_locked(tape):
            view = views.get(nonce)
            if view is None:
                return [RunningRank(f"{nonce:016x}")]
            stopped = view.stopped
            return [
                RunningRank(
                    f"{nonce:016x}",
                    stopped.state if stopped is not None else "",
                    stopped.since_ns if stopped is not None else 0,
                    view.ran_ns,
                    view.child,
                )
            ]
    return []


def _add_file(bundle: tarfile.TarFile, name: str, file: Path, newest: int | None) -> None:
    """Add a file at its current length, because ranks keep writing to it."""
    try:
        content = read_part(file, 0, MAX_FILE_BYTES, os.geteuid())
    except OSError as error:
        _logger.warning("%s is missing from the bundle: %s", file, reason(error))
        return
    changed_s = changed_ns(file) / 1e9  # a stack is compared with records by the time of its file
    _add(bundle, name, detached(content, newest) if is_tape_name(file.name) else content, changed_s)


def _add(bundle: tarfile.TarFile, name: str, content: bytes, changed_s: float | None = None) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), 0o600
    entry.mtime = time.time() if changed_s is None else changed_s
    bundle.addfile(entry, io.BytesIO(content))
