"""The training job of the demo: an unmodified script under torchrun, instrumented through its environment.

Its spans go to a file, and to an OTLP endpoint if one is given; its tapes and logs to temporary directories.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Generator, Mapping, MutableMapping
from dataclasses import dataclass
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from opentelemetry.environment_variables import OTEL_TRACES_EXPORTER
from opentelemetry.sdk.environment_variables import (
    OTEL_EXPORTER_OTLP_ENDPOINT,
    OTEL_EXPORTER_OTLP_PROTOCOL,
    OTEL_EXPORTER_OTLP_TRACES_ENDPOINT,
    OTEL_EXPORTER_OTLP_TRACES_PROTOCOL,
)

from otel_torchdist import environment_variables as env
from otel_torchdist.cli.demo.options import DemoOptions, Protocol, is_of_values
from otel_torchdist.cli.demo.process_tree import ProcessTree
from otel_torchdist.config import NumericsMode, ReaderHome
from otel_torchdist.environment_variables import OTEL_PYTHON_TORCHDIST_OTLP_FILE
from otel_torchdist.files.locks import alone_in, using

_NEEDED: Final = {"torch": "torch", "sklearn": "scikit-learn"}
_SWITCHES_OFF: Final = (
    env.OTEL_SDK_DISABLED,
    env.OTEL_PYTHON_DISABLED_INSTRUMENTATIONS,
    "TORCH_DEVICE_BACKEND_AUTOLOAD",
)
_SHOWN_ERRORS: Final = 4_000


def missing_packages() -> list[str]:
    """Return the packages that the job needs and that are not installed."""
    return [package for module, package in _NEEDED.items() if find_spec(module) is None]


class Job:
    """torchrun and its ranks, from the first process to the last.

    Attributes:
        processes: All of its processes, including the agent.
        environment: Environment of all of them.
    """

    def __init__(self, options: DemoOptions, scratch: Scratch) -> None:
        """Start the job."""
        self._errors = scratch.logs / "stderr.log"
        self._unfinished = b""
        self.environment = _environment(os.environ, options, scratch)
        self.processes = ProcessTree(_command(options, scratch.logs), self.environment, self._errors)

    def new_lines(self) -> list[str]:
        """Return what the script has printed since the last call."""
        try:
            while data := os.read(self.processes.output, 65_536):
                self._unfinished += data
        except BlockingIOError:
            pass
        *lines, self._unfinished = self._unfinished.split(b"\n")
        return [line.decode(errors="replace").rstrip() for line in lines]

    def errors(self) -> str:
        """Return the end of what torchrun and the ranks have written to stderr."""
        return self._errors.read_text(errors="replace")[-_SHOWN_ERRORS:].strip()


def _command(options: DemoOptions, logs: Path) -> list[str]:
    script = str(files("otel_torchdist.cli.demo").joinpath("train.py"))
    return [
        sys.executable, "-m", "torch.distributed.run",
        "--standalone", "--nproc-per-node", str(options.ranks), "--log-dir", str(logs),
        script,
        "--steps", str(options.steps), "--seed", str(options.seed),
        "--fault", options.fault.value, "--faulty-rank", str(options.faulty_rank),
        "--block-seconds", str(options.block_s),
    ]  # fmt: skip


def _environment(environ: Mapping[str, str], options: DemoOptions, scratch: Scratch) -> dict[str, str]:
    """Build the environment that enables recording: the ranks write tapes, and an agent that they start reads them."""
    kept = {name: value for name, value in environ.items() if name not in _SWITCHES_OFF}
    environment = {
        # All ranks are local, and gloo would look up the address of this host's name.
        "GLOO_SOCKET_IFNAME": "lo",
        **kept,
        env.OTEL_PYTHON_TORCHDIST_ENABLED: "true",
        env.OTEL_PYTHON_TORCHDIST_READER: ReaderHome.AGENT.value,
        env.OTEL_PYTHON_TORCHDIST_AGENT_LINGER: "0",
        env.OTEL_PYTHON_TORCHDIST_ANNOUNCE: "false",  # the demo shows verdicts itself
        env.OTEL_PYTHON_TORCHDIST_STALL_TIMEOUT: str(round(options.threshold_s * 1000)),
        env.OTEL_PYTHON_TORCHDIST_TAPE_DIR: str(scratch.tapes),
        # More threads than cores are slower, and torchrun would print that it chose 1.
        "OMP_NUM_THREADS": "1",
    }
    if is_of_values(options.fault):
        environment[env.OTEL_PYTHON_TORCHDIST_NUMERICS] = NumericsMode.ALL.value
        environment[env.OTEL_PYTHON_TORCHDIST_NUMERICS_EVERY] = "1"
    set_outputs(environment, options)
    return environment


_PORT_OF_OTLP_HTTP: Final = 4318
_FILE: Final = "torchdist_otlp_json"


def set_outputs(environ: MutableMapping[str, str], options: DemoOptions) -> None:
    """Make the agent, which has the job's environment, export to the file and to the endpoint of the options.

    Without an endpoint it exports to what the environment configures, which may be nothing.
    """
    _set_endpoint(environ, options)
    others = [name for name in environ.get(OTEL_TRACES_EXPORTER, "otlp").split(",") if name.strip() not in ("", "none")]
    environ[OTEL_TRACES_EXPORTER] = ",".join([*others, _FILE])
    environ[OTEL_PYTHON_TORCHDIST_OTLP_FILE] = str(options.output.resolve())


def _set_endpoint(environ: MutableMapping[str, str], options: DemoOptions) -> None:
    if options.endpoint is None:
        if not any(environ.get(name) for name in (OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_EXPORTER_OTLP_TRACES_ENDPOINT)):
            environ.setdefault(OTEL_TRACES_EXPORTER, "none")
        return
    for name in (OTEL_EXPORTER_OTLP_TRACES_ENDPOINT, OTEL_EXPORTER_OTLP_TRACES_PROTOCOL):
        environ.pop(name, None)
    environ[OTEL_TRACES_EXPORTER] = "otlp"
    environ[OTEL_EXPORTER_OTLP_ENDPOINT] = options.endpoint
    if options.protocol is not None:
        environ[OTEL_EXPORTER_OTLP_PROTOCOL] = options.protocol.value
    elif _port_of(options.endpoint) == _PORT_OF_OTLP_HTTP:
        environ[OTEL_EXPORTER_OTLP_PROTOCOL] = Protocol.HTTP.value


def endpoint_in(environ: MutableMapping[str, str]) -> str:
    """Return the OTLP endpoint that an environment names; '' if there is none."""
    if "otlp" not in environ.get(OTEL_TRACES_EXPORTER, "otlp").split(","):
        return ""
    return environ.get(OTEL_EXPORTER_OTLP_TRACES_ENDPOINT) or environ.get(OTEL_EXPORTER_OTLP_ENDPOINT) or ""


def _port_of(endpoint: str) -> int | None:
    try:
        return urlsplit(endpoint if "//" in endpoint else f"//{endpoint}").port
    except ValueError:
        return None


_PREFIX: Final = "demo-"


@dataclass(frozen=True, slots=True)
class Scratch:
    """Directories of one demo.

    Attributes:
        tapes: Base directory of its tapes, in memory.
        logs: Output of torchrun and its ranks.
    """

    tapes: Path
    logs: Path


@contextlib.contextmanager
def scratch(base: Path) -> Generator[Scratch]:
    """Create directories below `base` and among the temporary files; they are removed at the end.

    Leftovers of earlier demos that were killed are removed at the beginning.

    Raises:
        TapeError: The directory for tapes cannot be created.
    """
    for directory in base.glob(f"{_PREFIX}*"):
        with alone_in(directory) as is_unused:
            if is_unused:
                shutil.rmtree(directory, ignore_errors=True)
    tapes = base / f"{_PREFIX}{secrets.token_hex(8)}"
    with tempfile.TemporaryDirectory(prefix="torchdist-demo-") as logs, using(tapes):
        try:
            yield Scratch(tapes, Path(logs))
        finally:
            shutil.rmtree(tapes, ignore_errors=True)
