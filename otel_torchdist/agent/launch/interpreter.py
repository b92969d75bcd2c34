"""Finds a Python that can run an agent: the program's own executable may not be an interpreter.

PyInstaller, cx_Freeze, Nuitka and PyOxidizer build applications that ignore `-c`: started again, such an application
would train once more, as a second rank 0. A host program with Python embedded in it (uWSGI, a simulator) also names
itself.
"""

from __future__ import annotations

import os
import re
import sys
import sysconfig
from typing import Any, Final

_INTERPRETER: Final = re.compile(
    r"\.?(python|pypy|graalpy)([0-9]+(\.[0-9]+)*)?[a-z]?([-_](dbg|debug|gil|nogil|wrapped|intel64))?", re.IGNORECASE
)
"""Matches `python3.13t`, `python3.11-dbg`, `pypy3`, `.python3.11-wrapped`; not `python-train`."""


def find_interpreter() -> str:
    """Return the path of a Python with this program's standard library; '' if there is none (see `why_none`)."""
    if _is_bundled():
        return ""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    # A program that embeds Python is not an interpreter, but the installation it uses usually has one.
    installed = [os.path.join(prefix, "bin", version) for prefix in (sys.exec_prefix, sys.base_exec_prefix)]
    candidates = [sys.executable, *(path for path in installed if os.access(path, os.X_OK))]
    return next((path for path in candidates if path and _is_named_like_one(path)), "")


def why_none() -> str:
    """Why `find_interpreter` found none, as the first half of a sentence."""
    if _is_bundled():
        return f"{sys.executable or 'this program'} is an application with an embedded Python"
    if not sys.executable:
        return "the path of the Python interpreter is unknown"
    return f"{sys.executable} is not a Python interpreter"


def _is_bundled() -> bool:
    """Whether the program was frozen or compiled with its modules inside, where no other Python can find them."""
    if getattr(sys, "frozen", False) or getattr(sys, "oxidized", False):
        return True
    compiled: Any = getattr(sys.modules.get("__main__"), "__compiled__", None)  # Nuitka's
    return compiled is not None and bool(getattr(compiled, "standalone", True) or getattr(compiled, "onefile", False))


def _is_named_like_one(path: str) -> bool:
    """Whether a file, or what it links to, has an interpreter's name."""
    return any(_INTERPRETER.fullmatch(os.path.basename(name)) for name in (path, os.path.realpath(path)))


def interpreter_flags() -> list[str]:
    """Flags of this interpreter that decide where modules come from and how paths are encoded."""
    flags = sys.flags
    if flags.isolated:
        given = "I"
    else:
        safe_path: bool = getattr(flags, "safe_path", False)  # from Python 3.11 on
        given = "E" * bool(flags.ignore_environment) + "s" * bool(flags.no_user_site) + "P" * safe_path
    given += "S" * bool(flags.no_site) + "B" * bool(flags.dont_write_bytecode)
    return [*(f"-{flag}" for flag in given), *(("-X", "utf8") if flags.utf8_mode else ())]


def module_path(path: list[Any]) -> list[str]:
    """Return this process's module path, for a process that must not find other modules instead.

    Anything but text is left out: programs put a `Path` into `sys.path`, which Python silently ignores. The standard
    library comes first: a script may have a `queue.py` beside it and never need Python's; the agent does.
    """
    entries = [_absolute(entry) for entry in path if isinstance(entry, str) and "\0" not in entry]
    library = _standard_library()
    return sorted(entries, key=lambda entry: entry not in library)


def _absolute(entry: str) -> str:
    try:
        absolute = os.path.abspath(entry)
    except OSError:  # the working directory is gone
        return entry
    # What is not a file may be the name of a path hook, as in editable installations.
    return absolute if os.path.exists(absolute) else entry


def _standard_library() -> set[str]:
    folders = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
    return folders | {os.path.join(folder, "lib-dynload") for folder in folders}
