"""Has torchrun fork its ranks instead of starting them anew: importing torch takes each of them seconds of a core.

All else is torchrun's own: how it polls for ranks that have ended, and how it ends the others. A forked rank runs its
script as `python -u script arguments` would, and /proc shows its own command and environment.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import itertools
import os
import runpy
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from subprocess import TimeoutExpired
from typing import Any, Final, NoReturn

from tests.support.repository import REPOSITORY
from tests.support.waiting import until

IMPORTED: Final = (
    "torch._dynamo",
    "torch.distributed.device_mesh",
    "torch.nn.parallel",
    "torch.optim",
    "torch.utils.data",
    "otel_torchdist.agent.thread",
    "otel_torchdist.capture.session",
    "otel_torchdist.launch.switch",
    "otel_torchdist.telemetry.export.outputs",
)
"""What ranks would import, imported before they are forked."""
PADDING: Final = "TEST_PADDING"
"""A variable that a forking process is started with: its value makes room for the environments of those it forks."""
ROOM: Final = "." * 16_384
ORDINARY_END: Final = "TEST_ORDINARY_END"
"""A variable of a forked process that ends as every interpreter does, and takes all its objects apart."""
TOGETHER: Final = "TEST_FORKED_TOGETHER"
"""A variable with a folder, for torchruns of several nodes: ranks run only when those of all nodes have been forked."""
_EXTRA: Final = "TEST_IMPORTED"
_DEFAULTS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


def with_forked_ranks(environ: Mapping[str, str], *imports: str) -> dict[str, str]:
    """Complete an environment so that the torchruns that are started in it fork their ranks.

    Args:
        environ: The environment.
        *imports: Modules of the ranks that are imported before they are forked.
    """
    paths = [str(REPOSITORY), str(Path(__file__).with_name("warm_site")), environ.get("PYTHONPATH", "")]
    return {**environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), _EXTRA: " ".join(imports), PADDING: ROOM}


def show_as(argv: Sequence[str], environ: Mapping[str, str]) -> None:
    """Have /proc show another command and environment of this process, as far as they fit into the place of its own.

    The kernel shows what is in the memory where it put the first ones, which nothing else uses any more.
    """
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    arguments, arguments_end, variables, variables_end = map(int, fields[45:49])
    _write(arguments, arguments_end, argv)
    _write(variables, variables_end, [f"{name}={value}" for name, value in environ.items()])


def _write(begin: int, end: int, texts: Sequence[str]) -> None:
    data = b"".join(os.fsencode(text) + b"\0" for text in texts)[: end - begin - 1]
    ctypes.memmove(begin, data.ljust(end - begin, b"\0"), end - begin)


class Gate:
    """Ranks run only when all of their node have been forked; those of all nodes, with `TOGETHER`.

    As soon as one connects to the store, a thread of torchrun looks up its name, for which glibc takes a lock of its
    resolver; a process that is forked meanwhile would wait for that lock for ever.
    """

    def __init__(self) -> None:
        """Close it."""
        self._reading, self._writing = os.pipe()

    def wait(self) -> None:
        """Return when it has been opened; for those that were forked."""
        os.close(self._writing)
        os.read(self._reading, 1)
        os.close(self._reading)

    def open(self) -> None:
        """Let all run that wait for it."""
        os.close(self._reading)
        os.close(self._writing)


class Forked:
    """What torchrun, or the demo, expects of a `Popen`."""

    def __init__(
        self, args: Sequence[str], env: Mapping[str, str], outputs: Mapping[int, Any], gate: Gate | None = None
    ) -> None:
        """Fork.

        Args:
            args: The command that would be started.
            env: Its environment.
            outputs: The files that replace descriptors, if any.
            gate: What it waits for before it runs.
        """
        self.args, self.returncode = args, None
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            _become(args, env, outputs, gate)
        while os.getpgid(self.pid) != self.pid:  # torchrun sends its signals to a group with that number
            time.sleep(0.001)

    returncode: int | None

    def poll(self) -> int | None:
        """The exit code, minus the signal's number if one ended it; None while it runs."""
        if self.returncode is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            if ended:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, once there is one."""
        deadline = time.monotonic() + timeout if timeout is not None else None
        while (code := self.poll()) is None:
            if deadline is not None and time.monotonic() > deadline:
                raise TimeoutExpired(self.args, timeout or 0.0)
            time.sleep(0.005)
        return code


def _become(args: Sequence[str], env: Mapping[str, str], outputs: Mapping[int, Any], gate: Gate | None) -> NoReturn:
    os.setsid()
    for number in _DEFAULTS:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    if gate:
        gate.wait()
    for descriptor, file in outputs.items():
        if file is not None:
            os.dup2(file.fileno(), descriptor)
    os.environ.clear()
    os.environ.update(env)
    show_as(args, env)
    sys.argv[:] = [arg for arg in args[1:] if arg != "-u"]
    sys.path[0] = str(Path(sys.argv[0]).parent)
    code = 0
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as asked:
        code = asked.code if isinstance(asked.code, int) else int(asked.code is not None)
    except BaseException as error:
        traceback.print_exc()
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
        code = 1
    end(code)


def end(code: int) -> NoReturn:
    """End as an interpreter does, but without taking its objects apart: what is shared would be copied for that.

    It takes a second of a core where torch is imported. Threads are waited for, and handlers of the end run.

    Args:
        code: The exit code; minus a signal's number for one that ends the process.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    ctypes.CDLL(None).fflush(None)
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def fork_ranks() -> None:
    """Let torchrun fork its ranks from this process, from now on."""
    os.environ.pop(PADDING, None)
    import_once((*IMPORTED, *os.environ.pop(_EXTRA, "").split()))
    from torch.distributed.elastic.multiprocessing.api import SubprocessContext
    from torch.distributed.elastic.multiprocessing.subprocess_handler import subprocess_handler

    start, attempts = SubprocessContext._start, itertools.count()

    def start_behind_gate(context: SubprocessContext) -> None:
        gate = Gate()

        def fork(handler: Any, args: Sequence[str], env: Mapping[str, str]) -> Forked:
            return Forked(args, env, {1: handler._stdout, 2: handler._stderr}, gate)

        subprocess_handler.SubprocessHandler._popen = fork  # type: ignore[method-assign]
        try:
            start(context)
            if TOGETHER in os.environ:
                _wait_for_other_nodes(Path(os.environ[TOGETHER]), next(attempts), context.envs[0])
        finally:
            gate.open()

    SubprocessContext._start = start_behind_gate  # type: ignore[method-assign]


def _wait_for_other_nodes(folder: Path, attempt: int, env: Mapping[str, str]) -> None:
    (folder / f"forked-{attempt}-{env['GROUP_RANK']}").touch()
    until(lambda: len(list(folder.glob(f"forked-{attempt}-*"))) == int(env["GROUP_WORLD_SIZE"]))


def import_once(names: Iterable[str]) -> None:
    """Import what children share; none of them writes to it, or cleans it up at its end.

    Args:
        names: Modules. While they are imported, the garbage collector would look at all of them again and again.
    """
    gc.disable()
    for name in names:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    gc.enable()
