"""The training job of the demo: an unmodified script under torchrun, instrumented through its environment.

Its spans go to a file, and to an OTLP endpoint if one is given; its tapes and logs to temporary directories.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Mapping, MutableMapping, Sequence
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
from otel_torchdist.cli.demo.options import DemoOptions, Protocol, corrupts_values
from otel_torchdist.config import NumericsMode, ReaderHome
from otel_torchdist.environment_variables import OTEL_PYTHON_TORCHDIST_OTLP_FILE
from otel_torchdist.system.files.locks import exclusive_lock, shared_lock
from otel_torchdist.tape.identity import process_state

_PR_SET_CHILD_SUBREAPER: Final = 36
_GRACE_S: Final = 3.0
_POLL_S: Final = 0.02


class ProcessTree:
    """A command in its own session, so that Ctrl-C in the terminal reaches only this process.

    torchrun also starts each rank in its own session, so there is no process group to kill. Instead, this process is
    the subreaper of all descendants: processes whose parent dies become its children.

    Attributes:
        output: The read end of the command's stdout, non-blocking.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], stderr: Path) -> None:
        """Start the command; its stderr goes to a file."""
        self._earlier_children = _children()
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        with stderr.open("wb") as log:
            self._root = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        assert self._root.stdout is not None
        self.output = self._root.stdout.fileno()
        os.set_blocking(self.output, False)

    @property
    def exit_code(self) -> int | None:
        """Exit code of the command; None while it runs."""
        return self._root.poll()

    @property
    def has_orphans(self) -> bool:
        """Whether a descendant whose parent has ended is still running."""
        states = map(process_state, _children() - self._earlier_children - {self._root.pid})
        return any(state is not None and state[0] != "Z" for state in states)

    def ask_to_end(self) -> None:
        """Ask the command to end; it passes this on to its child processes."""
        if self._root.poll() is None:
            self._root.terminate()

    def stop(self) -> None:
        """End all processes: cleanly within three seconds, then by force."""
        if self._root.poll() is None:
            self.ask_to_end()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._root.wait(_GRACE_S)
        self._kill_all()
        if self._root.stdout is not None:
            self._root.stdout.close()

    def _kill_all(self) -> None:
        """Kill all remaining processes; the children of a killed process become ours and are killed next."""
        deadline = time.monotonic() + _GRACE_S
        while (remaining := _children() - self._earlier_children) and time.monotonic() < deadline:
            for pid in remaining:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for pid in remaining - {self._root.pid}:  # Popen reaps the root process
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
            self._root.poll()
            time.sleep(_POLL_S)


def _children() -> frozenset[int]:
    """Return the child processes of this process."""
    own_pid = str(os.getpid())
    return frozenset(int(name) for name in os.listdir("/proc") if name.isdecimal() and _parent_of(name) == own_pid)


def _parent_of(pid: str) -> str:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return ""
    # The program's name is in parentheses, and may itself contain parentheses.
    return stat[stat.rindex(")") + 2 :].split()[1]


_REQUIRED_MODULES: Final = {"torch": "torch", "sklearn": "scikit-learn"}
_DISABLING_VARIABLES: Final = (
    env.OTEL_SDK_DISABLED,
    env.OTEL_PYTHON_DISABLED_INSTRUMENTATIONS,
    "TORCH_DEVICE_BACKEND_AUTOLOAD",
)
_MAX_ERROR_CHARACTERS: Final = 4_000


def missing_packages() -> list[str]:
    """Return required packages that are not installed."""
    return [package for module, package in _REQUIRED_MODULES.items() if find_spec(module) is None]


class DemoJob:
    """The demo's job: torchrun, its ranks and their agent.

    Attributes:
        processes: All processes of the job.
        environment: Environment of all processes.
    """

    def __init__(self, options: DemoOptions, scratch: Scratch) -> None:
        """Start the job."""
        self._errors = scratch.logs / "stderr.log"
        self._partial_line = b""
        self.environment = _environment(os.environ, options, scratch)
        self.processes = ProcessTree(_command(options, scratch.logs), self.environment, self._errors)

    def new_lines(self) -> list[str]:
        """Return the lines that the script has printed since the last call."""
        try:
            while data := os.read(self.processes.output, 65_536):
                self._partial_line += data
        except BlockingIOError:
            pass
        *lines, self._partial_line = self._partial_line.split(b"\n")
        return [line.decode(errors="replace").rstrip() for line in lines]

    def errors(self) -> str:
        """Return the end of the stderr of torchrun and the ranks."""
        return self._errors.read_text(errors="replace")[-_MAX_ERROR_CHARACTERS:].strip()


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
    """Build an environment that enables recording: the ranks write tapes and start an agent that reads them."""
    inherited = {name: value for name, value in environ.items() if name not in _DISABLING_VARIABLES}
    environment = {
        # All ranks are local. Gloo would look up the address of the host name.
        "GLOO_SOCKET_IFNAME": "lo",
        **inherited,
        env.OTEL_PYTHON_TORCHDIST_ENABLED: "true",
        env.OTEL_PYTHON_TORCHDIST_READER: ReaderHome.AGENT.value,
        env.OTEL_PYTHON_TORCHDIST_AGENT_LINGER: "0",
        env.OTEL_PYTHON_TORCHDIST_ANNOUNCE: "false",  # the demo shows verdicts itself
        env.OTEL_PYTHON_TORCHDIST_STALL_TIMEOUT: str(round(options.threshold_s * 1000)),
        env.OTEL_PYTHON_TORCHDIST_TAPE_DIR: str(scratch.tapes),
        # Threads beyond the number of cores slow the ranks down. If unset, torchrun prints that it chose 1.
        "OMP_NUM_THREADS": "1",
    }
    if corrupts_values(options.fault):
        environment[env.OTEL_PYTHON_TORCHDIST_NUMERICS] = NumericsMode.ALL.value
        environment[env.OTEL_PYTHON_TORCHDIST_NUMERICS_EVERY] = "1"
    set_outputs(environment, options)
    return environment


_OTLP_HTTP_PORT: Final = 4318
_FILE_EXPORTER: Final = "torchdist_otlp_json"


def set_outputs(environ: MutableMapping[str, str], options: DemoOptions) -> None:
    """Make the agent, which inherits the job's environment, export to the file and to the endpoint of the options.

    Without an endpoint the agent exports to the destination that the environment configures, if any.
    """
    _set_endpoint(environ, options)
    exporters = [
        name for name in environ.get(OTEL_TRACES_EXPORTER, "otlp").split(",") if name.strip() not in ("", "none")
    ]
    environ[OTEL_TRACES_EXPORTER] = ",".join([*exporters, _FILE_EXPORTER])
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
    elif _port_of(options.endpoint) == _OTLP_HTTP_PORT:
        environ[OTEL_EXPORTER_OTLP_PROTOCOL] = Protocol.HTTP.value


def endpoint_in(environ: MutableMapping[str, str]) -> str:
    """Return the OTLP endpoint of an environment; '' if there is none."""
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
    """Temporary directories of a demo.

    Attributes:
        tapes: Base directory of its tapes, in memory.
        logs: Output of torchrun and its ranks.
    """

    tapes: Path
    logs: Path


@contextlib.contextmanager
def scratch(base: Path) -> Generator[Scratch]:
    """Create a directory below `base` and a temporary one, and remove both at the end.

    Leftovers of earlier demos that were killed are removed first.

    Raises:
        TapeError: The directory for tapes cannot be created.
    """
    for directory in base.glob(f"{_PREFIX}*"):
        with exclusive_lock(directory) as is_unused:
            if is_unused:
                shutil.rmtree(directory, ignore_errors=True)
    tapes = base / f"{_PREFIX}{secrets.token_hex(8)}"
    with tempfile.TemporaryDirectory(prefix="torchdist-demo-") as logs, shared_lock(tapes):
        try:
            yield Scratch(tapes, Path(logs))
        finally:
            shutil.rmtree(tapes, ignore_errors=True)
