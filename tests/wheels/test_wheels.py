"""Wheels, installed where there is no compiler."""

from __future__ import annotations

import os
import platform
import re
import shlex
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch

from benchmarks.native_library import BUILT, has_compiler
from otel_torchdist.native.build import find_compiler
from otel_torchdist.native.library import library_name
from tests.support.environments import Run, at_hand, make_environment, run_program
from tests.support.repository import REPOSITORY

pytestmark = [pytest.mark.thorough, pytest.mark.rare]
COMPILER = Path(__file__).with_name("kept_compiler.py")
COMPILED = BUILT / "wheels"
TIMES = 20


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `make wheels` makes of the torch at hand."""
    if not has_compiler():
        pytest.skip("no C++ compiler: wheels with libraries cannot be built")
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "wheels", "--installed", "--machine", platform.machine(), "--to", str(folder)]
    environ = {
        **os.environ,
        "CXX": shlex.join([sys.executable, str(COMPILER), str(COMPILED), *find_compiler()]),
        "PYTHONPATH": str(REPOSITORY),
    }
    done = subprocess.run(command, cwd=REPOSITORY, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def run_with(wheel: Path, folder: Path) -> Run:
    """Install a wheel into an empty environment that sees the torch at hand, and run a program there.

    Neither the installation nor the program finds a compiler.
    """
    python = make_environment(folder, at_hand(folder.with_name("at-hand")))
    environ = {"PATH": str(folder / "bin"), "HOME": str(folder)}
    install = [sys.executable, "-m", "pip", f"--python={python}", "install", "--no-deps", "--no-index", "--quiet"]
    subprocess.run([*install, "--disable-pip-version-check", str(wheel)], env=environ, check=True)
    return run_program(python, TIMES, folder)


def test_names(wheels: Path) -> None:
    """One wheel for this architecture, one for all machines, and the sources."""
    version = r"otel_torchdist-[\d.]+"
    found = sorted(path.name for path in wheels.iterdir())
    expected = [
        rf"{version}-py3-none-any\.whl",
        rf"{version}-py3-none-manylinux_2_28_{platform.machine()}\.whl",
        rf"{version}\.tar\.gz",
    ]
    assert len(found) == len(expected)
    assert all(re.fullmatch(pattern, name) for pattern, name in zip(expected, found, strict=True)), found


def test_native(wheels: Path, tmp_path: Path) -> None:
    """An environment without compiler records natively, with the library that the wheel brings."""
    [wheel] = wheels.glob("*-manylinux*.whl")
    with zipfile.ZipFile(wheel) as archive:
        [metadata] = [name for name in archive.namelist() if name.endswith(".dist-info/WHEEL")]
        text = archive.read(metadata).decode()
    assert f"Root-Is-Purelib: false\nTag: py3-none-manylinux_2_28_{platform.machine()}\n" in text
    ran = run_with(wheel, tmp_path / "venv")
    library = ran.files / "native" / "libraries" / library_name(torch.__version__)
    assert tmp_path in library.parents
    assert ran.log == [f"recording natively, with {library}"]
    ends = [operation.how for operation in ran.tape.named("all_reduce")]
    assert len(ends) == TIMES
    assert ends.count("CALLBACK") >= TIMES - 2, ends


def test_pure(wheels: Path, tmp_path: Path) -> None:
    """The wheel for all machines has no library; Python records, and the log says so once."""
    [wheel] = wheels.glob("*-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert not [name for name in archive.namelist() if name.endswith(".so")]
    ran = run_with(wheel, tmp_path / "venv")
    [line] = ran.log
    assert line.startswith(f"recording in Python: there is no native library for torch {torch.__version__} on ")
    ends = [operation.how for operation in ran.tape.named("all_reduce")]
    assert len(ends) == TIMES
    assert "CALLBACK" not in ends


def test_installing_the_sources_needs_no_compiler(tmp_path: Path) -> None:
    """As `pip install .` builds it: a wheel for all machines."""
    program = "import sys, hatchling.build as backend; print(backend.build_wheel(sys.argv[1]))"
    environ = {"PATH": str(tmp_path), "CXX": "absent++", "HOME": os.environ.get("HOME", "/")}
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        cwd=REPOSITORY,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    [wheel] = tmp_path.glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
