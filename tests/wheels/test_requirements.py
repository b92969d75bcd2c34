"""What a library may need, with libraries that a compiler has made."""

from __future__ import annotations

import ctypes
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from wheels.elf import symbols_of
from wheels.requirements import functions_of_python, unmet


def linked(folder: Path, source: str) -> Path:
    """A library of a source in C."""
    compiler = shutil.which("gcc")
    if not compiler:
        pytest.skip("no gcc")
    library = folder / "library.so"
    command = [compiler, "-shared", "-fPIC", "-x", "c", "-", "-o", str(library)]
    subprocess.run(command, input=source, text=True, check=True)
    return library


def test_what_is_everywhere(tmp_path: Path) -> None:
    """Functions of old glibc, of Python and of torch are there."""
    source = "void *PyObject_Call(), *of_torch(), *malloc(unsigned long);"
    library = linked(tmp_path, f"{source} void *f(void) {{ PyObject_Call(); of_torch(); return malloc(1); }}")
    assert {"PyObject_Call", "of_torch", "malloc"} <= {
        symbol.name for symbol in symbols_of(library) if not symbol.is_defined
    }
    assert unmet(library, {"of_torch"}) == []


def test_what_nobody_has(tmp_path: Path) -> None:
    """A function that neither torch nor Python has, such as one of a newer Python, is named."""
    library = linked(tmp_path, "int PyUnstable_New(void); int f(void) { return PyUnstable_New(); }")
    assert unmet(library, {"of_torch"}) == ["it needs PyUnstable_New, which neither torch nor Python has"]


def test_what_is_too_new(tmp_path: Path) -> None:
    """A symbol that glibc has had since 2.32 only is named, though this machine has it."""
    if tuple(map(int, platform.libc_ver()[1].split("."))) < (2, 32):
        pytest.skip("this machine's glibc is too old")
    library = linked(tmp_path, "extern char __libc_single_threaded; char f(void) { return __libc_single_threaded; }")
    [problem] = unmet(library, ())
    assert problem == "it needs __libc_single_threaded of GLIBC_2.32, and GLIBC_2.28 is the newest on all machines"


def test_python_has_what_is_declared() -> None:
    """The functions of Python that the library declares are functions, not macros of its headers, in this Python."""
    declared = functions_of_python()
    assert len(declared) >= 10
    assert [name for name in sorted(declared) if not hasattr(ctypes.pythonapi, name)] == []
