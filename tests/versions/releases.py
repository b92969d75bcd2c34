"""Other releases of this package, built and installed into folders of their own.

A release is the newest tag `v*`, or a *next* one: this commit with a higher version, and perhaps higher numbers of its
formats. A program uses it if its folder comes first on the path of modules.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.support.repository import REPOSITORY

VERSION = re.compile(r'^version = "([^"]+)"$', re.MULTILINE)
FORMAT = re.compile(r'^([A-Z]+): Final = NumberedFormat\("([a-z ]+)", (\d+)\)$', re.MULTILINE)
NEXT = "99.1.0"
_MAIN = "from otel_torchdist.cli import main; main()"


@dataclass(frozen=True)
class Release:
    """A release.

    Attributes:
        folder: Where it is installed; None for this checkout.
        version: Its version.
        formats: The numbers of its formats, by their names in `formats.py`.
    """

    folder: Path | None
    version: str
    formats: Mapping[str, int]

    def environment(self, **more: str) -> dict[str, str]:
        """The environment of a program that uses it, without settings of this process."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "PYTHONPATH"))}
        path = {} if self.folder is None else {"PYTHONPATH": str(self.folder)}
        return {**kept, **path, "COLUMNS": "200", **more}

    def command(self, *arguments: str | Path) -> list[str]:
        """Its `otel-torchdist`."""
        return [sys.executable, "-c", _MAIN, *map(str, arguments)]

    def ask(self, *arguments: str | Path, **more: str) -> subprocess.CompletedProcess[str]:
        """Run its `otel-torchdist` until it ends."""
        return subprocess.run(
            self.command(*arguments),
            env=self.environment(**more),
            cwd="/",  # `python -c` looks for modules in the working directory first
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )


def this_release() -> Release:
    """This checkout."""
    return Release(None, *_facts(REPOSITORY))


def next_release(folder: Path, *raised: str) -> Release:
    """Install this commit with a higher version.

    Args:
        folder: An empty folder.
        *raised: The formats whose number is one higher.
    """
    source = _extracted("HEAD", folder / "source")
    project, formats = source / "pyproject.toml", source / "otel_torchdist" / "formats.py"
    project.write_text(VERSION.sub(f'version = "{NEXT}"', project.read_text(), count=1))
    text, count = FORMAT.subn(lambda found: _raised(found) if found[1] in raised else found[0], formats.read_text())
    assert count == len(this_release().formats)
    formats.write_text(text)
    return _installed(source, folder / "installed")


def _raised(definition: re.Match[str]) -> str:
    return definition[0].replace(f", {definition[3]})", f", {int(definition[3]) + 1})")


def newest_tag() -> str:
    """The newest release; '' while there is none."""
    return _git("tag", "--list", "v*", "--sort=-version:refname").decode().partition("\n")[0]


def tagged_release(tag: str, folder: Path) -> Release:
    """Install a tagged release into an empty folder."""
    return _installed(_extracted(tag, folder / "source"), folder / "installed")


def _extracted(commit: str, folder: Path) -> Path:
    with tarfile.open(fileobj=io.BytesIO(_git("archive", commit))) as archive:
        archive.extractall(folder, filter="data")
    return folder


def _installed(source: Path, folder: Path) -> Release:
    options = ("--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--no-compile", "--target", folder)
    subprocess.run([sys.executable, "-m", "pip", "install", *options, source], check=True, timeout=300)
    return Release(folder, *_facts(source))


def _facts(source: Path) -> tuple[str, dict[str, int]]:
    [version] = VERSION.findall((source / "pyproject.toml").read_text())
    found = FORMAT.findall((source / "otel_torchdist" / "formats.py").read_text())
    return version, {name: int(number) for name, _, number in found}


def _git(*arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], cwd=REPOSITORY, capture_output=True, check=True).stdout
