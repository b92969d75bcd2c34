"""torchrun whose ranks are forked from it instead of started anew: importing torch takes each of them seconds.

Everything else is torchrun's own: how it polls for ranks that have ended, and how it ends the others. The variable
WARM_TORCHRUN holds, as JSON, the path of a file for the ids of its process and of its ranks', and its arguments.
"""

from __future__ import annotations

import atexit
import json
import os
import runpy
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from subprocess import TimeoutExpired
from typing import Any, NoReturn

from torch.distributed import run
from torch.distributed.elastic.multiprocessing.subprocess_handler.subprocess_handler import SubprocessHandler

DEFAULTS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


class Forked:
    """What torchrun expects of a `Popen`."""

    def __init__(self, args: tuple[str, ...], env: dict[str, str]) -> None:
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            become_rank(args, env)
        with PID_FILE.open("a") as file:
            file.write(f"{self.pid}\n")
        while self.pid not in (os.getpgid(self.pid), 0):  # torchrun sends its signals to a group with that number
            time.sleep(0.001)

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
                raise TimeoutExpired("a rank", timeout or 0.0)
            time.sleep(0.005)
        return code


def become_rank(args: tuple[str, ...], env: dict[str, str]) -> NoReturn:
    """Run a script as the interpreter would that torchrun starts: `python -u script arguments`."""
    os.setsid()
    for number in DEFAULTS:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(env)
    sys.argv[:] = [arg for arg in args[1:] if arg != "-u"]
    code = 0
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException as error:
        traceback.print_exc()
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(code)


def fork_rank(handler: SubprocessHandler, args: tuple[str, ...], env: dict[str, str]) -> Any:
    """Replaces `SubprocessHandler._popen`."""
    return Forked(args, env)


if __name__ == "__main__":
    pid_file, *arguments = json.loads(os.environ.pop("WARM_TORCHRUN"))
    PID_FILE = Path(pid_file)
    PID_FILE.write_text(f"{os.getpid()}\n")
    SubprocessHandler._popen = fork_rank  # type: ignore[method-assign]
    run.main(arguments)
