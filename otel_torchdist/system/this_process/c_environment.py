"""Sets an environment variable for C code while other threads run.

`os.environ[name] = value` is unsafe: `setenv` moves the array that `getenv` may be searching in another thread, without
the GIL, and that thread then crashes (glibc before 2.41). torch and gloo call `getenv` whenever a group is created.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

_libc: Final = ctypes.PyDLL(None)
"""The C library. A call through `PyDLL` keeps the GIL."""
_libc.malloc.restype = ctypes.c_void_p


@contextmanager
def c_variable(name: str, value: str) -> Generator[None, None, None]:
    """Set a variable for C code and for programs started meanwhile; `os.environ` does not show it.

    Args:
        name: Name of a variable without a value.
        value: Its value.
    """
    # A thread that has just obtained the GIL keeps it for the switch interval, 5 ms. So no other Python thread changes
    # the environment in between.
    time.sleep(0)
    _append(os.fsencode(f"{name}={value}"))
    try:
        yield
    finally:
        # Moves the entries after this one; usually there are none. Concurrent readers see valid entries.
        _libc.unsetenv(os.fsencode(name))


def _append(entry: bytes) -> None:
    """Replace the array of entries by a longer copy, with one store.

    Concurrent readers of the old array see it unchanged. The copy, a few hundred bytes, is never freed: C code may keep
    pointers that `getenv` has returned.
    """
    environ = ctypes.c_void_p.in_dll(_libc, "environ")
    entries = _entries(environ.value)
    longer: int = _libc.malloc((len(entries) + 2) * ctypes.sizeof(ctypes.c_void_p))
    copy: int = _libc.malloc(len(entry) + 1)
    ctypes.memmove(copy, entry + b"\0", len(entry) + 1)
    (ctypes.c_void_p * (len(entries) + 2)).from_address(longer)[:] = [*entries, copy, None]
    environ.value = longer


def _entries(array: int | None) -> list[int]:
    """Return the addresses in an array that ends with a null pointer."""
    if not array:  # after `clearenv`
        return []
    pointers = ctypes.cast(array, ctypes.POINTER(ctypes.c_void_p))
    entries: list[int] = []
    while entry := pointers[len(entries)]:
        entries.append(entry)
    return entries
