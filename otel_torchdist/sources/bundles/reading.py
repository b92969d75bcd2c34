"""Unpacks a bundle of evidence, which may be damaged, forged or huge, into a directory of tapes."""

from __future__ import annotations

import os
import re
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from otel_torchdist.model.text import readable
from otel_torchdist.node.job.bundled import (
    MANIFEST_NAME,
    MAX_BYTES,
    MOMENT_NAME,
    PLACE_NAME,
    BundledMoment,
    BundleManifest,
    decode_manifest,
)
from otel_torchdist.sources.flight.reading.archives import is_archive, members_of
from otel_torchdist.sources.flight.reading.limits import UnreadableError
from otel_torchdist.system.files.unpacking import TooLargeError, UnpackBudget
from otel_torchdist.tape.names.decoding import DecodingError, decode_json

MAX_FILE_BYTES: Final = 256 << 20
_MEMBER: Final = re.compile(r"[^/]+/([A-Za-z0-9][A-Za-z0-9._-]{0,127})/([A-Za-z0-9][A-Za-z0-9._-]{0,127})")
"""A file of the job directory. Only these two names are used for paths, so no member leaves the directory."""


@dataclass(frozen=True, slots=True)
class UnpackedBundle:
    """The content of a bundle.

    Attributes:
        directory: Copy of the job directory.
        manifest: Its origin.
        notes: Reasons for missing parts, one line each.
    """

    directory: Path
    manifest: BundleManifest
    notes: tuple[str, ...]


def manifest_of(path: Path) -> BundleManifest | None:
    """Return the manifest of a bundle; None for any other file. Reads the file's start only.

    Raises:
        OtherFormatError: The bundle has another format.
    """
    if not is_archive(path.name) or not path.is_file():
        return None
    try:
        with closing(_members(path, MAX_BYTES)) as members:
            name, content = next(members, ("", None))
        if content is None or not name.endswith(f"/{MANIFEST_NAME}"):
            return None
        return decode_manifest(content, readable(str(path)))
    except (OSError, UnreadableError, TooLargeError, DecodingError):
        return None


def unpack(path: Path, folder: Path) -> UnpackedBundle | None:
    """Unpack a bundle.

    Args:
        path: The bundle.
        folder: An empty directory of this user.

    Returns:
        None if it is not a bundle. A damaged bundle is unpacked up to the damage.

    Raises:
        OtherFormatError: The bundle has another format.
    """
    manifest = manifest_of(path)
    if manifest is None:
        return None
    notes: list[str] = []
    directory, moment = folder / "job", None
    try:
        for name, content in _members(path, MAX_FILE_BYTES):
            match = _MEMBER.fullmatch(name)
            if match is None or match[1] == "flight-recorder":
                continue
            directory = folder / match[1] if name.endswith(f"/{MANIFEST_NAME}") else directory
            if content is None:
                notes.append(f"{path}: {match[2]} has more than {MAX_FILE_BYTES >> 20} MiB: left out")
            elif match[1] == directory.name:
                _write(directory / match[2], content)
                moment = content if match[2] == MOMENT_NAME else moment
    except (OSError, UnreadableError, TooLargeError) as error:
        notes.append(f"{path}: {error}: everything before that is used")
    directory.mkdir(mode=0o700, exist_ok=True)
    _write(directory / PLACE_NAME, os.fsencode(str(path)))
    _restore_times(directory, moment)
    if manifest.records is not None:
        notes.append(f"{path}: it holds the newest {manifest.records:,} records of each tape, and open operations")
    return UnpackedBundle(directory, manifest, tuple(notes))


def _members(path: Path, max_bytes: int) -> Generator[tuple[str, bytes | None]]:
    yield from members_of(path, max_bytes, UnpackBudget())


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(mode=0o700, exist_ok=True)
    with open(path, "wb") as file:
        file.write(content)


def _restore_times(directory: Path, moment: bytes | None) -> None:
    try:
        changed_ns = decode_json(moment, BundledMoment).changed_ns if moment is not None else {}
    except DecodingError:
        return
    for file in directory.iterdir():
        if file.name in changed_ns:
            os.utime(file, ns=(changed_ns[file.name], changed_ns[file.name]))
