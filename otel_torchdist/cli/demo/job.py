"""The training job of the demo: a script that knows nothing of us, under torchrun, switched on by its environment."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from otel_torchdist import environment_variables as env
from otel_torchdist.cli.demo.options import DemoOptions
from otel_torchdist.cli.demo.outputs import set_outputs
from otel_torchdist.cli.demo.process_tree import ProcessTree
from otel_torchdist.cli.demo.scratch import Scratch
from otel_torchdist.config import ReaderHome

_NEEDED: Final = {"torch": "torch", "sklearn": "scikit-learn"}
_SWITCHES_OFF: Final = (
    env.OTEL_SDK_DISABLED,
    env.OTEL_PYTHON_DISABLED_INSTRUMENTATIONS,
    "TORCH_DEVICE_BACKEND_AUTOLOAD",
)
_SHOWN_ERRORS: Final = 4_000


def missing_packages() -> list[str]:
    """What the job needs and is not installed."""
    return [package for module, package in _NEEDED.items() if find_spec(module) is None]


class Job:
    """torchrun and its ranks, from the beginning to the last of them.

    Attributes:
        processes: All of its processes, the agent among them.
        environment: Of all of them.
    """

    def __init__(self, options: DemoOptions, scratch: Scratch) -> None:
        """Start it."""
        self._errors = scratch.logs / "stderr.log"
        self._unfinished = b""
        self.environment = _environment(os.environ, options, scratch)
        self.processes = ProcessTree(_command(options, scratch.logs), self.environment, self._errors)

    def new_lines(self) -> list[str]:
        """What the script has printed since the last call."""
        try:
            while data := os.read(self.processes.output, 65_536):
                self._unfinished += data
        except BlockingIOError:
            pass
        *lines, self._unfinished = self._unfinished.split(b"\n")
        return [line.decode(errors="replace").rstrip() for line in lines]

    def errors(self) -> str:
        """The end of what torchrun and the ranks have written to stderr."""
        return self._errors.read_text(errors="replace")[-_SHOWN_ERRORS:].strip()


def _command(options: DemoOptions, logs: Path) -> list[str]:
    script = str(files("otel_torchdist.demo").joinpath("train.py"))
    return [
        sys.executable, "-m", "torch.distributed.run",
        "--standalone", "--nproc-per-node", str(options.ranks), "--log-dir", str(logs),
        script,
        "--steps", str(options.steps), "--seed", str(options.seed),
        "--fault", options.fault.value, "--faulty-rank", str(options.faulty_rank),
        "--block-seconds", str(options.block_s),
    ]  # fmt: skip


def _environment(environ: Mapping[str, str], options: DemoOptions, scratch: Scratch) -> dict[str, str]:
    """The environment that switches the ranks on: they write tapes, and an agent that they start reads them."""
    kept = {name: value for name, value in environ.items() if name not in _SWITCHES_OFF}
    environment = {
        # All ranks are here, and gloo would ask what address this host's name has.
        "GLOO_SOCKET_IFNAME": "lo",
        **kept,
        env.OTEL_PYTHON_TORCHDIST_ENABLED: "true",
        env.OTEL_PYTHON_TORCHDIST_READER: ReaderHome.AGENT.value,
        env.OTEL_PYTHON_TORCHDIST_AGENT_LINGER: "0",
        env.OTEL_PYTHON_TORCHDIST_STALL_TIMEOUT: str(round(options.threshold_s * 1000)),
        env.OTEL_PYTHON_TORCHDIST_TAPE_DIR: str(scratch.tapes),
        # More threads than cores are slower, and torchrun would say that it chose 1.
        "OMP_NUM_THREADS": "1",
    }
    set_outputs(environment, options)
    return environment
