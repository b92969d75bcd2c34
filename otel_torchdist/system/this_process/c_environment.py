"""A variable of the environment for C code, set while threads run.

`os.environ[name] = value` is no way to do that: `setenv` moves the array that `getenv` may be searching in another
thread, without the GIL, and that thread then crashes (glibc before 2.41). torch and gloo call `getenv` whenever a group
is created.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

_libc: Final = ctypes.PyDLL(None)
"""Its functions are called with the GIL held."""
_libc.malloc.restype = ctypes.c_void_p


@contextmanager
def c_variable(name: str, value: str) -> Generator[None, None, None]:
    """Let C code, and programs that are started meanwhile, find a variable; `os.environ` does not show it.

    Args:
        name: A name that has no value yet.
        value: Its value.
    """
    # Who has just waited for the GIL keeps it for Python's switch interval, 5 ms: no other Python thread changes the
    # environment in between.
    time.sleep(0)
    _append(os.fsencode(f"{name}={value}"))
    try:
        yield
    finally:
        # Moves the entries behind this one, usually none: who reads them meanwhile finds valid ones.
        _libc.unsetenv(os.fsencode(name))


def _append(entry: bytes) -> None:
    """Replace the array of entries by a longer copy, with one store.

    Who is reading the former array finds it as it was. The copy, some hundred bytes, is never freed: C code may keep
    what `getenv` returns.
    """
    environ = ctypes.c_void_p.in_dll(_libc, "environ")
    entries = _entries(environ.value)
    longer: int = _libc.malloc((len(entries) + 2) * ctypes.sizeof(ctypes.c_void_p))
    own: int = _libc.malloc(len(entry) + 1)
    ctypes.memmove(own, entry + b"\0", len(entry) + 1)
    (ctypes.c_void_p * (len(entries) + 2)).from_address(longer)[:] = [*entries, own, None]
    environ.value = longer


def _entries(array: int | None) -> list[int]:
    """The addresses of the entries in an array that ends with a null pointer."""
    if not array:  # after `clearenv`
        return []
    pointers = ctypes.cast(array, ctypes.POINTER(ctypes.c_void_p))
    entries: list[int] = []
    while entry := pointers[len(entries)]:
        entries.append(entry)
    return entries
