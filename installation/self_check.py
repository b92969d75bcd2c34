"""Checks what records calls, the native library or Python, with one call in a child process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

_FIRST_CALL = Path(__file__).with_name("first_call.py")
_LIMIT_S = 300
"""Seconds for the call: importing torch from a slow network file system takes minutes."""
_UNKNOWN = "of unknown version"
_REMOVED_PREFIXES = (
    "OTEL_",
    "TORCH_DEVICE_BACKEND_AUTOLOAD",
    "TORCHELASTIC_",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_",
    "GROUP_",
)
"""Prefixes of environment variables to remove: they would change the recording, or make the process a rank of a job."""


@dataclass(frozen=True)
class Check:
    """The outcome of the call.

    Attributes:
        version: Version of otel_torchdist; '' if unknown.
        torch: Version of torch; '' if it cannot be imported.
        is_recorded: Whether the call was recorded.
        library: Path of the native library that recorded it; '' if Python did.
        is_own: Whether this library is part of the package.
        trouble: The last log message, if the call was not recorded or was recorded in Python.
    """

    version: str
    torch: str
    is_recorded: bool
    library: str = ""
    is_own: bool = True
    trouble: str = ""

    @property
    def is_well(self) -> bool:
        """Whether calls are recorded, or torch is missing."""
        return self.is_recorded or not self.torch

    def sentence(self, why_python: str) -> str:
        """Return the outcome as one line.

        Args:
            why_python: Why no native library was built; '' if one was.
        """
        installed = " ".join(("otel_torchdist", *self.version.split(), "is installed for", sys.executable))
        if not self.torch:
            return f"{installed}, where torch cannot be imported ({self.trouble}): install torch, then repeat this"
        if not self.is_recorded:
            return f"{installed}, but does not record torch {self.torch}: {self.trouble}"
        if not self.library:
            return f"{installed}: Python records torch {self.torch}, because {why_python or self.trouble}"
        before = "" if self.is_own else " (of `otel-torchdist build-native`, which comes before the one installed now)"
        return f"{installed}: it records torch {self.torch} natively, with {self.library}{before}"


def check(scratch: Path, python: Path = Path(sys.executable), cache: Path | None = None) -> Check:
    """Record a call in an environment without settings, and return the outcome.

    Args:
        scratch: Empty folder for the tape.
        python: Python of the environment.
        cache: Folder to use instead of the user's cache, which may have a library that comes before the package's.
    """
    tapes = scratch / "tapes"
    tapes.mkdir(mode=0o700)
    environ = {name: value for name, value in os.environ.items() if not name.startswith(_REMOVED_PREFIXES)}
    environ |= {"OTEL_PYTHON_TORCHDIST_ENABLED": "true", "OTEL_PYTHON_TORCHDIST_READER": "none"}
    environ |= {"OTEL_PYTHON_TORCHDIST_TAPE_DIR": str(tapes), "OTEL_PYTHON_TORCHDIST_TAPE_ON_DISK": "true"}
    environ["GLOO_SOCKET_IFNAME"] = "lo"
    if cache:
        environ["XDG_CACHE_HOME"] = str(cache)
    command = [str(python), str(_FIRST_CALL), str(tapes)]
    try:
        done = subprocess.run(
            command, cwd=scratch, env=environ, capture_output=True, text=True, timeout=_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return Check("", _UNKNOWN, False, trouble=f"a call in one process has not ended after {_LIMIT_S} s")
    if done.returncode:
        reasons = done.stderr.strip().splitlines() or [f"a process that calls it exited with {done.returncode}"]
        return Check("", _UNKNOWN, False, trouble=reasons[-1])
    return Check(**json.loads(done.stdout.splitlines()[-1]))
