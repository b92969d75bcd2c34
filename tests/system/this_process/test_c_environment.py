"""A variable for C code comes and goes without harm to who uses the environment at the same time."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from otel_torchdist.system.this_process.c_environment import c_variable

NAME = "TEST_C_VARIABLE"
libc = ctypes.CDLL(None)
libc.getenv.restype = ctypes.c_char_p


def array() -> tuple[int, list[int]]:
    """Where C code finds the environment now, and the addresses that are there up to the final null pointer."""
    at = ctypes.c_void_p.in_dll(libc, "environ").value
    assert at
    return at, entries(at)


def entries(at: int) -> list[int]:
    """The addresses in an array."""
    pointers = ctypes.cast(at, ctypes.POINTER(ctypes.c_void_p))
    found: list[int] = []
    while entry := pointers[len(found)]:
        found.append(entry)
    return found


@pytest.fixture(autouse=True)
def own_array() -> Iterator[None]:
    """As in any program that has set a variable: the array is one that glibc has allocated, and may move."""
    os.environ["TEST_BEFORE"] = "1"
    yield
    for name in ("TEST_BEFORE", "TEST_CHANGED", "TEST_SET"):
        os.environ.pop(name, None)


def seen_by_programs() -> list[str]:
    """The environment of a program that is started."""
    return subprocess.run(["env"], capture_output=True, text=True, check=True).stdout.splitlines()


def test_seen_by_c_inside() -> None:
    """C code and programs find it inside, Python never; all else is as before and after."""
    before = seen_by_programs()
    with c_variable(NAME, "some value"):
        assert libc.getenv(NAME.encode()) == b"some value"
        assert seen_by_programs() == [*before, f"{NAME}=some value"]
        assert NAME not in os.environ
    assert libc.getenv(NAME.encode()) is None
    assert seen_by_programs() == before


def test_array_in_use_stays() -> None:
    """A thread that is searching the array finds all of it in its place, when the variable comes and when it goes."""
    where, before = array()
    with c_variable(NAME, "1"):
        longer, inside = array()
        assert (longer != where, inside[:-1], entries(where)) == (True, before, before)
    assert (array(), entries(where)) == ((longer, before), before)


def test_changed_meanwhile() -> None:
    """What other threads set, change or delete inside stays set, changed or deleted."""
    os.environ["TEST_CHANGED"] = "old"
    with c_variable(NAME, "1"):
        os.environ["TEST_CHANGED"] = "new"
        os.environ["TEST_SET"] = "1"
        del os.environ["TEST_BEFORE"]
    ours = ("TEST_BEFORE", "TEST_CHANGED", "TEST_SET", NAME)
    assert [line for line in seen_by_programs() if line.startswith(ours)] == ["TEST_CHANGED=new", "TEST_SET=1"]


CLEARED = f"""
import ctypes
from otel_torchdist.system.this_process.c_environment import c_variable

libc = ctypes.CDLL(None)
libc.getenv.restype = ctypes.c_char_p
libc.clearenv()
with c_variable("{NAME}", "1"):
    assert libc.getenv(b"{NAME}") == b"1"
assert libc.getenv(b"{NAME}") is None
"""


def test_empty_environment() -> None:
    """A program that has cleared its environment gets one with only this variable."""
    assert subprocess.run([sys.executable, "-c", CLEARED], check=False).returncode == 0
