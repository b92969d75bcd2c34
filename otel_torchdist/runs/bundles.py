"""Bundles of evidence as what to read: unpacked until this process ends."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from otel_torchdist.errors import RunError
from otel_torchdist.formats import OtherFormatError
from otel_torchdist.model.text import readable
from otel_torchdist.node.job.bundled import PREFIX, SUFFIX

_TEMPORARY: Final = "otel-torchdist-bundle-"
_VERDICT: Final = "-verdict-"
"""In the names of bundles that an agent wrote with a verdict."""


@dataclass(frozen=True, slots=True)
class ChosenBundle:
    """A bundle to read.

    Attributes:
        path: Its file.
        notes: Notes for people if it was chosen from a folder.
    """

    path: Path
    notes: tuple[str, ...] = ()


def is_bundle_folder(path: Path) -> bool:
    """Return whether a path is a folder with bundles."""
    return path.is_dir() and bool(_bundles_in(path))


def chosen_bundle(paths: Sequence[Path], prefix: str) -> ChosenBundle | None:
    """Return the bundle that paths name; None if they name none.

    Args:
        paths: A bundle, or a folder of bundles, from which the newest is taken.
        prefix: The first digits of the run's id; '' for any run.

    Raises:
        RunError: The paths name a bundle and something else, the bundle has another format, or the folder has no bundle
            of such a run.
    """
    if len(paths) == 1 and is_bundle_folder(paths[0]):
        return _newest_in(paths[0], prefix)
    from otel_torchdist.sources.bundles.reading import manifest_of  # imported on use: most commands read no bundle

    try:
        bundles = [path for path in paths if manifest_of(path) is not None]
    except OtherFormatError as error:
        raise RunError(str(error)) from error
    if bundles and len(paths) > 1:
        raise RunError(
            f"{readable(str(bundles[0]))}: a bundle of evidence is read alone, because each is a moment of its own; "
            "name one"
        )
    return ChosenBundle(bundles[0]) if bundles else None


def unpacked(path: Path) -> tuple[Path, tuple[str, ...]]:
    """Unpack a bundle into a private directory, which is removed when this process ends.

    Returns:
        The job directory in it, and warnings about parts that cannot be read.

    Raises:
        RunError: It is no bundle that can be read.
    """
    from otel_torchdist.sources.bundles.reading import unpack

    folder = tempfile.mkdtemp(prefix=_TEMPORARY)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    bundle = unpack(path, Path(folder))
    if bundle is None:
        raise RunError(f"{readable(str(path))}: no bundle of evidence that can be read")
    return bundle.directory, tuple(f"warning: {note}" for note in bundle.notes)


def _newest_in(folder: Path, prefix: str) -> ChosenBundle:
    from otel_torchdist.sources.bundles.reading import manifest_of

    refusals: list[str] = []
    bundles = _bundles_in(folder)
    for path in bundles:
        try:
            manifest = manifest_of(path)
        except OtherFormatError as error:
            refusals.append(str(error))
            continue
        if manifest is not None and manifest.run.startswith(prefix.lower()):
            notes = [f"warning: {refusal}" for refusal in refusals[:1]]
            notes.append(f"the newest bundle{' that can be read' * bool(refusals)}: {readable(str(path))}")
            judged = [other for other in bundles if _VERDICT in other.name and manifest.run[:8] in other.name]
            if judged and _VERDICT not in path.name:
                notes.append(f"the newest of this run with a verdict: {readable(str(judged[0]))}")
            return ChosenBundle(path, tuple(notes))
    if refusals:
        raise RunError(refusals[0])
    run = f" of a run that begins with {prefix}" if prefix else " that can be read"
    raise RunError(f"{readable(str(folder))}: no bundle{run}")


def _bundles_in(folder: Path) -> list[Path]:
    """Return the bundles in a folder by their names, newest first; an empty list if it cannot be read."""
    try:
        names = [name for name in os.listdir(folder) if name.startswith(PREFIX) and name.endswith(SUFFIX)]
    except OSError:
        return []
    return [folder / name for name in sorted(names, reverse=True)]
