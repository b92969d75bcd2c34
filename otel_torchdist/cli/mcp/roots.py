"""The directories that an assistant may read. A path that leads out of them is refused, also through links."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from otel_torchdist.config import Config
from otel_torchdist.errors import RunError, TapeError
from otel_torchdist.model.text import readable
from otel_torchdist.node.job.runs.runs import tape_directory

MAX_ENTRIES: Final = 100_000
"""Upper bound on the files of one requested directory. All of them are checked before one is read."""


class ReadableRoots:
    """The directories that this server may read."""

    def __init__(self, chosen: Sequence[Path], config: Config) -> None:
        """Use the chosen directories, or without any those that the settings name.

        Args:
            chosen: Directories; links in their own paths are followed now.
            config: The settings, whose directories for tapes, archives, bundles and dumps are used otherwise.
        """
        self._chosen = tuple(path.resolve() for path in chosen)
        self._config = config

    def directories(self) -> tuple[Path, ...]:
        """Return the directories that exist now, with all links resolved, without duplicates."""
        paths = self._chosen or self._configured()
        return tuple(dict.fromkeys(path for path in paths if path.is_dir()))

    def checked(self, text: str) -> Path:
        """Return the path without links if it, and everything below it, lies in these directories.

        Raises:
            RunError: It does not, is not absolute, or does not exist. The refusal of a path outside does not tell
                whether it exists.
        """
        if "\0" in text or not os.path.isabs(text):
            raise RunError(f"{readable(text)}: an absolute path is needed, for example from list_runs")
        try:
            path = Path(text).resolve()
        except (OSError, RuntimeError):  # a loop of links; RuntimeError before Python 3.13
            raise RunError(f"{readable(text)}: {self._refusal()}") from None
        if not self.contain(path):
            raise RunError(f"{readable(text)}: {self._refusal()}")
        if not path.exists():
            raise RunError(f"{readable(text)}: no such file or directory")
        if path.is_dir():
            self.check_links(path)
        return path

    def check_links(self, directory: Path) -> None:
        """Refuse a directory with a link that leads out: readers of dumps and logs follow links.

        Raises:
            RunError: There is such a link, or the directory has too many files.
        """
        count = 0
        for folder, subfolders, names in os.walk(directory):
            count += len(names) + len(subfolders)
            if count > MAX_ENTRIES:
                raise RunError(f"{readable(str(directory))}: more than {MAX_ENTRIES:,} files: name a part of it")
            for name in (*subfolders, *names):
                entry = Path(folder, name)
                if entry.is_symlink() and not self._contain_target(entry):
                    raise RunError(f"{readable(str(entry))}: a link; it is {self._refusal()}")

    def _contain_target(self, link: Path) -> bool:
        try:
            return self.contain(link.resolve())
        except (OSError, RuntimeError):
            return False

    def contain(self, path: Path) -> bool:
        """Return whether a path without links lies in these directories."""
        return any(path.is_relative_to(root) for root in self.directories())

    def _refusal(self) -> str:
        listed = ", ".join(readable(str(root)) for root in self.directories()) or "none, because none exists yet"
        return f"outside the directories that this server may read ({listed})"

    def _configured(self) -> list[Path]:
        config = self._config
        try:
            tapes = [tape_directory(config)]
        except TapeError as error:
            raise RunError(str(error)) from error
        others = [path for path in (config.archive, config.bundles) if path is not None]
        # Anyone may create the default directory for dumps, which lies in /tmp, or a link in its place.
        dumps = [config.dump_dir] if _is_own_directory(config.dump_dir) else []
        return [path.resolve() for path in (*tapes, *others, *dumps)]


def _is_own_directory(path: Path) -> bool:
    with contextlib.suppress(OSError):
        return not path.is_symlink() and path.is_dir() and path.stat().st_uid == os.geteuid()
    return False
