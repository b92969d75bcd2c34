"""torchrun as tests start it: from an interpreter that has imported torch, which saves each process seconds of a core.

Where a test is about how processes start, it starts torchrun as a user does.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.support.launch.warm_python import Done, WarmPython

TORCHRUN: Final = Path(__file__).with_name("warm_torchrun.py")
WARM_DEMO: Final = TORCHRUN.with_name("warm_demo.py")
LONGEST_S: Final = 170.0
"""Below the limit of a test, so that what is left is known to belong to it."""
ENDS_S: Final = 45.0
"""torchrun itself gives its ranks 30 s, and only then kills them."""


class Torchrun:
    """torchrun and its ranks.

    Attributes:
        pid: The process id of torchrun.
    """

    def __init__(
        self, python: WarmPython, folder: Path, arguments: Sequence[str | Path], environ: Mapping[str, str]
    ) -> None:
        """Start it.

        Args:
            python: From which it is forked.
            folder: Where its output goes, and that of its ranks; nothing else's.
            arguments: Its options, the script, and the script's arguments.
            environ: Additions to the environment.
        """
        folder.mkdir(exist_ok=True)
        self._job = python.start(TORCHRUN, [environ], folder, list(map(str, arguments)), LONGEST_S)
        [self.pid] = self._job.pids

    def poll(self) -> int | None:
        """The exit code; None while it runs."""
        return self.wait(0.0) if self._job.codes.done() else None

    def wait(self, timeout_s: float = LONGEST_S) -> int | None:
        """Wait until it has ended; returns the exit code, None if it took too long.

        Raises:
            TimeoutError: It has not ended within that time.
        """
        return self.end(timeout_s).code

    def end(self, timeout_s: float = 2 * LONGEST_S) -> Done:
        """Wait until it has ended; returns what it printed, too."""
        [done] = self._job.wait(timeout_s)
        return done

    @property
    def log(self) -> str:
        """What it and its ranks have printed so far."""
        return "".join(path.read_text() for path in self._job.files[0])

    def send_signal(self, number: int) -> None:
        """Send a signal to torchrun alone."""
        os.kill(self.pid, number)

    def close(self) -> None:
        """Have it end its ranks, and wait for that."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                self.send_signal(signal.SIGTERM)
            self.end(ENDS_S)
