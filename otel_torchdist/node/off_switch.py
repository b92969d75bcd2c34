"""The files that switch recording off on this node, in running jobs too, while they exist."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

OFF_NAME: Final = "off"
"""Name of the file in a user's base directory of tapes. It concerns the jobs of this user only."""


class OffSwitch:
    """Finds the file that switches recording off. Looking takes two system calls, and never raises."""

    def __init__(self, off_file: Path, tape_dir: Path) -> None:
        """Look for two files.

        Args:
            off_file: The file for the whole node. Its folder's owner decides who may create it.
            tape_dir: The base directory of this user's tapes, with the file for this user.
        """
        self._off_file = off_file
        self._of_user = tape_dir / OFF_NAME

    def found(self) -> Path | None:
        """Return the file that switches recording off; None if recording is on."""
        if os.path.lexists(self._off_file):
            return self._off_file
        return self._of_user if _is_own(self._of_user) else None


def _is_own(path: Path) -> bool:
    """Return whether a file exists that this user or root has created: others may own a folder in `/dev/shm`."""
    try:
        status = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and status.st_uid in (0, os.geteuid())
