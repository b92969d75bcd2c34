"""Finds the native library, checks its compatibility, and calls it through ctypes.

The library is built for one minor version of torch, whose C++ interface it uses. It reads Python's frames by their
memory layouts, from a table or, since Python 3.13, from the interpreter itself. They are verified with a frame of ours.
"""

from __future__ import annotations

import ctypes
import logging
import os
import platform
import stat
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from otel_torchdist.config import CaptureKernel
from otel_torchdist.environment_variables import OTEL_PYTHON_TORCHDIST_CAPTURE
from otel_torchdist.errors import TorchDistError
from otel_torchdist.native.trust import why_not_trusted
from otel_torchdist.tape import layout

_logger = logging.getLogger("otel_torchdist")

_ABI: Final = layout.VERSION * 1000 + 6
_SHIPPED: Final = Path(__file__).parent / "libraries"
FAILURES: Final = (
    *("RuntimeError", "DistBackendError", "DistNetworkError", "DistStoreError", "DistError"),
    *("IndexError", "ValueError", "TypeError", "OutOfMemoryError", "NotImplementedError"),
)
"""Python's names of the C++ exceptions that the library distinguishes, in its order."""

_Handle = ctypes.c_void_p
_U64 = ctypes.c_uint64
_I64 = ctypes.c_int64
_U32 = ctypes.c_uint32
_INT = ctypes.c_int
_TEXT = ctypes.c_char_p
_OBJECT = ctypes.py_object


class NativeError(TorchDistError):
    """The native library is missing or unusable."""


class NoLibraryError(NativeError):
    """There is no native library for this torch."""


class OperationLayout(ctypes.Structure):
    """The positions of an operation's arguments; see `Operation` in source/arguments.h."""

    _fields_ = (
        *(("index", ctypes.c_int32), ("group", ctypes.c_int32), ("described", ctypes.c_int32)),
        *(("reduce_op", ctypes.c_int32), ("peer", ctypes.c_int32), ("tag", ctypes.c_int32)),
        *(("async_op", ctypes.c_int32), ("input_splits", ctypes.c_int32), ("output_splits", ctypes.c_int32)),
        *(("gathered", ctypes.c_int32), ("work", ctypes.c_int32)),
    )


_FUNCTIONS: Final[dict[str, tuple[Any, Sequence[Any]]]] = {
    "abi": (_INT, ()),
    "torch_version": (_TEXT, ()),
    "use_frames": (_INT, (_INT, _Handle)),
    "innermost_frame": (None, (ctypes.POINTER(_U64), ctypes.POINTER(_I64))),
    "open": (_Handle, (_INT, _U64)),
    "begin": (None, (_Handle, _U64, ctypes.POINTER(_U32))),
    "end": (None, (_Handle,)),
    "release": (None, (_Handle,)),
    "pass_on": (None, (_INT,)),
    "set_step": (None, (_Handle, _I64)),
    "stop_windows": (None, (_Handle,)),
    "tape_begin": (_U64, (_Handle, _U64, _I64, _U64, _TEXT)),
    "tape_append": (_U64, (_Handle, _TEXT)),
    "tape_mark": (None, (_Handle, _U64, ctypes.c_uint, _I64, ctypes.c_uint)),
    "tape_clear": (None, (_Handle, _U64, ctypes.c_uint)),
    "tape_complete": (_INT, (_Handle, _U64, _U64, _U64, ctypes.c_uint, _U32)),
    "tape_find_record_entered_at": (_U64, (_Handle, _U64)),
    "tape_open": (_U64, (_Handle, ctypes.POINTER(_U64), _U64)),
    "tape_add": (None, (_Handle, ctypes.c_uint, _U64)),
    "add_group": (_Handle, (_Handle, _INT)),
    "set_default": (None, (_Handle,)),
    "set_coalescing": (None, (_Handle, _INT)),
    "is_synchronized": (_INT, (_Handle,)),
    "add_counter": (_Handle, (_Handle,)),
    "label_word": (_Handle, ()),
    "next_bucket": (_Handle, (_Handle,)),
    "set_buckets": (None, (_Handle, _U32, ctypes.POINTER(_U64), _U64)),
    "learn_code": (None, (_Handle, _U64, _INT)),
    "forget_code": (None, (_Handle,)),
    "void_plans": (None, (_Handle,)),
    "plan": (_INT, (_Handle, _Handle, _Handle, _Handle, _TEXT, _U32, _U32, _U32)),
    "stream_of_torch": (_Handle, (_Handle, _Handle)),
    "devices": (_Handle, (_Handle, _U32)),
    "devices_take": (_U64, (_Handle, _Handle, _U64)),
    "devices_state": (_U32, (_Handle, _U32)),
    "devices_release": (None, (_Handle, _U32)),
    "devices_give_back": (None, (_Handle, _INT, _Handle)),
    "devices_drain": (_U64, (_Handle, ctypes.POINTER(_Handle), _U64)),
    "devices_failure": (_INT, (_Handle,)),
    "devices_stop": (None, (_Handle,)),
    "devices_wake": (None, (_Handle,)),
    "python_key": (_U64, ()),
    "python_key_name": (_TEXT, ()),
    "register": (_INT, (_TEXT, _TEXT, ctypes.POINTER(OperationLayout))),
    "register_wait": (_INT, (_TEXT, _INT)),
    "unregister": (None, ()),
    "make_wait": (_OBJECT, (_OBJECT,)),
    "call_on_failed_wait": (None, (_OBJECT,)),
}
_BLOCKING_FUNCTIONS: Final[dict[str, tuple[Any, Sequence[Any]]]] = {"devices_sleep": (None, (_Handle, _I64))}
"""Functions that block. They release the GIL."""


class Library:
    """The loaded library. Its attributes are its functions, without the prefix `otd_`.

    Nearly all are short, so they keep the GIL: releasing and taking it would cost more.
    """

    def __init__(self, path: Path) -> None:
        """Load the library. torch must be imported.

        Raises:
            NativeError: The file is not a library, or is for another torch or Python.
        """
        self.path = path
        _check_python()
        try:
            keeping_gil, releasing_gil = ctypes.PyDLL(str(path)), ctypes.CDLL(str(path))
            self._declare(keeping_gil, {"abi": _FUNCTIONS["abi"]})
            self._check_abi()  # before looking up functions that another version may lack
            self._declare(keeping_gil, _FUNCTIONS)
            self._declare(releasing_gil, _BLOCKING_FUNCTIONS)
        except (OSError, AttributeError) as error:
            raise NativeError(f"{path} cannot be loaded: {error}") from error
        self._check()

    def _declare(self, library: ctypes.CDLL, functions: dict[str, tuple[Any, Sequence[Any]]]) -> None:
        for name, (result, arguments) in functions.items():
            function = getattr(library, f"otd_{name}")
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)

    def __getattr__(self, name: str) -> Any:
        """Return a function of the library."""
        raise AttributeError(name)

    def _check_abi(self) -> None:
        if self.abi() != _ABI:
            raise NativeError(f"{self.path} is of another version of otel_torchdist")

    def _check(self) -> None:
        import torch

        built_for = self.torch_version().decode()
        if _minor(built_for) != _minor(torch.__version__):
            raise NativeError(f"{self.path} is for torch {built_for}, and this is torch {torch.__version__}")
        if not self.use_frames(sys.version_info.minor, _runtime()) or not self._finds_frames():
            raise NativeError(f"{self.path} does not support Python {platform.python_version()}")

    def _finds_frames(self) -> bool:
        """Return whether the library finds the frame of its caller."""
        code, instruction = _U64(), _I64()
        self.innermost_frame(ctypes.byref(code), ctypes.byref(instruction))
        frame = sys._getframe()  # pyright: ignore[reportPrivateUsage]  # its only name
        if code.value != id(frame.f_code):
            return False
        lines = [line for start, end, line in frame.f_code.co_lines() if start <= instruction.value < end]
        return lines == [self._finds_frames.__func__.__code__.co_firstlineno + 3]


def _runtime() -> int | None:
    """Return the address of the interpreter's state, which tells its memory layouts; None if it is not exported."""
    try:
        return ctypes.addressof(ctypes.c_char.in_dll(ctypes.pythonapi, "_PyRuntime"))
    except ValueError:
        return None


def _check_python() -> None:
    if platform.python_implementation() != "CPython":
        raise NativeError(f"{platform.python_implementation()} is not CPython")
    if "t" in sys.abiflags:
        raise NativeError("this Python is built to run without the GIL")


def _minor(version: str) -> tuple[str, ...]:
    return tuple(version.split(".")[:2])


def library_name(torch_version: str, machine: str = "") -> str:
    """Return the file name of the library for a torch version and an architecture, by default this machine's."""
    return f"otel_torchdist-torch{'.'.join(_minor(torch_version))}-{machine or platform.machine()}.so"


def library_cache() -> Path:
    """Return the folder of libraries that this user has built.

    Raises:
        NoLibraryError: This user has no home directory.
    """
    base = os.environ.get("XDG_CACHE_HOME", "")
    try:
        return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "otel-torchdist" / "native"
    except RuntimeError as error:
        raise NoLibraryError("this user has no home directory: XDG_CACHE_HOME can name one for libraries") from error


def chosen_library(kernel: CaptureKernel) -> Library | None:
    """Return the library that records calls, or None to record in Python.

    Logs the choice, as a warning if the library is unusable, or missing although the setting requires it.
    """
    if kernel is CaptureKernel.PYTHON:
        return None
    try:
        library = find_library(_cache_or_none())
    except NoLibraryError as error:
        if kernel is CaptureKernel.NATIVE:
            _warn(error)
        else:
            _logger.info("recording in Python: %s", error)
        return None
    except NativeError as error:
        _warn(error)
        return None
    _logger.info("recording natively, with %s", library.path)
    return library


def _warn(error: NativeError) -> None:
    _logger.warning("%s: recording in Python, which takes longer (%s)", error, OTEL_PYTHON_TORCHDIST_CAPTURE)


def _cache_or_none() -> Path | None:
    try:
        return library_cache()
    except NoLibraryError:
        return None


def find_library(cache: Path | None) -> Library:
    """Load the library for this torch: the library that was built here, else the wheel's.

    If the library that was built here is unusable, such as of an older version, warn and use the wheel's.

    Args:
        cache: The folder of `build-native`, or None.

    Raises:
        NativeError: The library is unusable.
        NoLibraryError: There is no library.
    """
    import torch

    name = library_name(torch.__version__)
    shipped = _SHIPPED / name
    has_shipped = shipped.is_file()  # its owner is not checked: who can change it can change this file, too
    if cache is not None:
        try:
            if _has_library(cache / name):
                return Library(cache / name)
        except NativeError as error:
            if not has_shipped:
                raise
            _logger.warning("%s: using %s instead", error, shipped)
    if has_shipped:
        return Library(shipped)
    raise NoLibraryError(
        f"there is no native library for torch {torch.__version__} on {platform.machine()}; "
        "`otel-torchdist build-native` builds one"
    )


def _has_library(path: Path) -> bool:
    """Return whether a library exists in the cache.

    Raises:
        NativeError: It cannot be read, is damaged, or others may have written it.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return False
        why = why_not_trusted(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise NativeError(f"{path} cannot be read: {error.strerror}") from error
    if why:
        raise NativeError(f"{path} {why}")
    return True
