"""Maps a file into memory without keeping a descriptor of it.

`mmap.mmap` duplicates the descriptor and closes the duplicate at the end, whatever it refers to by then. That also
releases the locks that this process has on the file.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from typing import Any, Final

_MAP_FIXED: Final = 0x10
_MAP_FAILED: Final = ctypes.c_void_p(-1).value


def map_shared(file: int, size: int) -> mmap.mmap:
    """Map the first `size` bytes of an open file, for reading and writing; the caller may close the file.

    Raises:
        OSError: It cannot be mapped.
    """
    if sys.version_info >= (3, 13):
        return mmap.mmap(file, size, trackfd=False)
    memory = mmap.mmap(-1, size)  # it only owns the addresses, at which the file replaces its pages
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    mapped = _mmap(address, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED | _MAP_FIXED, file, 0)
    if mapped == _MAP_FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return memory


def _declared() -> Any:
    function = ctypes.CDLL(None, use_errno=True).mmap
    function.restype = ctypes.c_void_p
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
    return function


_mmap: Final = _declared()
