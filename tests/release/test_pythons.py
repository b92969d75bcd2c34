"""Interpreters of this machine are found, and those that cannot make environments are passed over."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path

import pytest

from release.pythons import find_pythons, minor_of, supported_pythons

HERE = minor_of(platform.python_version())


def test_supported() -> None:
    """They are the classifiers' versions, this interpreter's included."""
    assert HERE in supported_pythons()
    assert all(minor.startswith("3.") for minor in supported_pythons())


def test_the_chosen_one_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A given program is taken, through its script; a program that fails, or has another version, is not."""
    wrong = tmp_path / f"python{HERE}"
    wrong.write_text("#!/bin/sh\nexit 1\n")
    wrong.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    shim = tmp_path / "shim"
    shim.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    shim.chmod(0o755)
    [found] = find_pythons([HERE], [wrong, tmp_path / "absent", shim]).values()
    assert (found.path, found.version) == (Path(sys.executable), platform.python_version())
    assert find_pythons(["3.1"], [Path(sys.executable)]) == {}
