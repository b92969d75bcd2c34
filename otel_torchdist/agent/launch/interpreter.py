"""Finds a Python interpreter that can run an agent: the program's executable may not be one.

PyInstaller, cx_Freeze, Nuitka and PyOxidizer build applications that ignore `-c`: started again, such an application
would train once more, as a second rank 0. In a host program with Python embedded in it (uWSGI, a simulator),
`sys.executable` may be that program.
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
    """Return the path of a Python with this program's standard library; '' if there is none."""
    if _is_bundled():
        return ""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    # A program that embeds Python is not an interpreter, but the installation it uses usually has one.
    installed = [os.path.join(prefix, "bin", version) for prefix in (sys.exec_prefix, sys.base_exec_prefix)]
    candidates = [sys.executable, *(path for path in installed if os.access(path, os.X_OK))]
    return next((path for path in candidates if path and _has_interpreter_name(path)), "")


def why_no_interpreter() -> str:
    """Return why `find_interpreter` found none, as the first half of a sentence."""
    if _is_bundled():
        return f"{sys.executable or 'this program'} is an application with an embedded Python"
    if not sys.executable:
        return "the path of the Python interpreter is unknown"
    return f"{sys.executable} is not a Python interpreter"


def _is_bundled() -> bool:
    """Return whether the program was frozen or compiled with its modules inside, where no other Python finds them."""
    if getattr(sys, "frozen", False) or getattr(sys, "oxidized", False):
        return True
    compiled: Any = getattr(sys.modules.get("__main__"), "__compiled__", None)  # set by Nuitka
    return compiled is not None and bool(getattr(compiled, "standalone", True) or getattr(compiled, "onefile", False))


def _has_interpreter_name(path: str) -> bool:
    """Return whether a file, or its link target, has the name of an interpreter."""
    return any(_INTERPRETER.fullmatch(os.path.basename(name)) for name in (path, os.path.realpath(path)))


def interpreter_flags() -> list[str]:
    """Return the flags of this interpreter that decide where modules come from and how paths are encoded."""
    flags = sys.flags
    if flags.isolated:
        letters = "I"
    else:
        safe_path: bool = getattr(flags, "safe_path", False)  # from Python 3.11 on
        letters = "E" * bool(flags.ignore_environment) + "s" * bool(flags.no_user_site) + "P" * safe_path
    letters += "S" * bool(flags.no_site) + "B" * bool(flags.dont_write_bytecode)
    return [*(f"-{flag}" for flag in letters), *(("-X", "utf8") if flags.utf8_mode else ())]


def module_path(path: list[Any]) -> list[str]:
    """Return this process's module path, for another process that must find the same modules.

    Entries that are not strings are left out: some programs put a `Path` into `sys.path`, which Python ignores. The
    standard library comes first: there may be a `queue.py` beside the script, but the agent needs Python's.
    """
    entries = [_absolute(entry) for entry in path if isinstance(entry, str) and "\0" not in entry]
    library = _standard_library()
    return sorted(entries, key=lambda entry: entry not in library)


def _absolute(entry: str) -> str:
    try:
        absolute = os.path.abspath(entry)
    except OSError:  # the working directory is gone
        return entry
    # A path that does not exist may be the name of a path hook, as in editable installations.
    return absolute if os.path.exists(absolute) else entry


def _standard_library() -> set[str]:
    folders = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
    return folders | {os.path.join(folder, "lib-dynload") for folder in folders}
