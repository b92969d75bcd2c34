"""Checks of a release's files that install nothing: metadata, contents, and the choice of pip."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from reference.pages import on_a_line
from release.outcomes import Outcome, last_line, outcome
from release.trials import chosen_by_pip
from release.version import ROOT

_CHOICES: Final = (
    ("manylinux_2_28_x86_64", "manylinux_2_28_x86_64"),
    ("manylinux_2_28_aarch64", "manylinux_2_28_aarch64"),
    ("manylinux_2_17_x86_64", "any"),
    ("musllinux_1_2_x86_64", "any"),
    ("macosx_14_0_arm64", "any"),
)
"""Platforms of users, and the platform of the wheel that pip must choose there."""
_NEEDED_IN_SOURCES: Final = (
    *("pyproject.toml", "hatch_build.py", "hatch_metadata.py", "Makefile", "tests/conftest.py"),
    *("README.md", "LICENSE", "CHANGELOG.md", "SECURITY.md", "SUPPORT.md"),
    *("otel_torchdist/__init__.py", "otel_torchdist/native/source/kernel.cc"),
)
_MADE: Final = ("PKG-INFO",)
"""Files of the sources that hatchling makes."""


def check_metadata(files: Sequence[Path]) -> list[Outcome]:
    """Check metadata and long description as the index does on upload."""
    return [_checked("twine check --strict", file, "twine", "check", "--strict", str(file.resolve())) for file in files]


def check_contents(files: Sequence[Path]) -> list[Outcome]:
    """Check the wheels for files that do not belong there, and the sources for missing ones."""
    wheels = [
        _checked("check-wheel-contents", file, "check_wheel_contents", "--toplevel=otel_torchdist", str(file.resolve()))
        for file in files
        if file.suffix == ".whl"
    ]
    return wheels + [_check_sources(file) for file in files if file.suffix == ".gz"]


def _checked(check: str, file: Path, module: str, *arguments: str) -> Outcome:
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    said = on_a_line(done.stdout) or last_line(done.stderr)
    return outcome(check, file.name, said or f"exit code {done.returncode}" if done.returncode else "")


def _check_sources(file: Path) -> Outcome:
    with tarfile.open(file) as archive:
        names = {member.name.partition("/")[2] for member in archive if not member.isdir()}
    troubles: list[str] = []
    missing = [name for name in _NEEDED_IN_SOURCES if name not in names]
    if missing:
        troubles.append(f"it lacks {', '.join(missing)}")
    tracked = _tracked()
    stray = sorted(names - tracked - {*_MADE})
    if tracked and stray:
        troubles.append(f"it has what is not in the repository: {', '.join(stray[:5])}")
    size = f"{len(names)} files, {file.stat().st_size / 1e6:.1f} MB"
    return outcome("contents of the sources", file.name, "; ".join(troubles), size)


def _tracked() -> set[str]:
    """Return the files of the repository; none outside of one."""
    done = subprocess.run(["git", "-C", str(ROOT), "ls-files", "-z"], capture_output=True, text=True, check=False)
    return {*done.stdout.split("\0")} - {""}


def check_choices(folder: Path, version: str, machines: Sequence[str]) -> list[Outcome]:
    """Check which wheel pip chooses on different platforms.

    Args:
        folder: Folder of the release's files.
        version: Their version.
        machines: Architectures with a wheel of their own.
    """
    outcomes: list[Outcome] = []
    for platform, expected in _CHOICES:
        of_machine = [machine for machine in machines if expected.endswith(machine)]
        name = chosen_by_pip(folder, version, Path(sys.executable), f"--platform={platform}")
        wanted = f"-{expected if of_machine else 'any'}.whl"
        trouble = "" if name.endswith(wanted) else f"pip takes {name or 'nothing'}, not *{wanted}"
        outcomes.append(outcome(f"choice of pip on {platform}", name or "*", trouble))
    return outcomes


def write_checksums(files: Sequence[Path], to: Path) -> None:
    """Write the SHA-256 sums of files in the format of `sha256sum --check`."""
    lines = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files]
    to.write_text("".join(lines), encoding="utf-8")
