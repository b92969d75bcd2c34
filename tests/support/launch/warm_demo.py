"""`otel-torchdist demo` that forks its torchrun, and that is itself forked from an interpreter that has imported torch.

The demo starts torchrun as a process of its own, with all that it does to end it: only how it starts is different.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

from otel_torchdist.cli import main
from otel_torchdist.cli.demo import job
from tests.support.launch.forked_ranks import Forked

TORCHRUN = Path(__file__).with_name("warm_demo_torchrun.py")


class ForkedTorchrun(Forked):
    """What the demo expects of a `Popen`."""

    def __init__(self, args: Sequence[str], *, env: Mapping[str, str], stderr: IO[bytes], **others: Any) -> None:
        """Fork; the arguments are those that the demo gives to `Popen`."""
        assert args[1:3] == ["-m", "torch.distributed.run"]
        assert others == {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "start_new_session": True}
        read, write = os.pipe2(os.O_CLOEXEC)
        with open(os.devnull, "rb") as nothing, open(write, "wb") as output:
            super().__init__([args[0], str(TORCHRUN), *args[3:]], env, {0: nothing, 1: output, 2: stderr})
        self.stdout = os.fdopen(read, "rb")

    def terminate(self) -> None:
        """Ask it to end."""
        os.kill(self.pid, signal.SIGTERM)


if __name__ == "__main__":
    # A namespace of its own, as ranks use the module too.
    job.subprocess = SimpleNamespace(**vars(subprocess) | {"Popen": ForkedTorchrun})  # type: ignore[assignment]
    sys.exit(main())
