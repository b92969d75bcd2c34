"""An interpreter that has imported torch once and forks a process for every script that it is asked to run.

Importing torch takes seconds of a processor. A script that runs here runs as `__main__` of a process of its own, from
its first line to the interpreter's ordinary end, and is a forked rank as a notebook launcher's ranks are.

It reads a line of JSON for each job from its standard input and answers with a line; see `warm_python`.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import importlib
import json
import os
import runpy
import signal
import sys
import time
from typing import Any

IMPORTED = (
    "torch._dynamo",
    "torch.distributed.device_mesh",
    "torch.nn.parallel",
    "torch.optim",
    "torch.utils.data",
    "otel_torchdist.agent.thread",
    "otel_torchdist.capture.session",
    "otel_torchdist.instrumentor",
    "otel_torchdist.telemetry.export.outputs",
    "tests.support.rank",
)
GRACE_S = 5.0
"""How long a process that has exceeded its time gets to write its stacks."""


def main() -> list[str] | None:
    """Serve jobs until the input ends; in a forked child, return what it has to run."""
    for name in (*IMPORTED, *sys.argv[1:]):
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # so that no child writes to the objects they all share, or cleans them up at its end
    print("ready", flush=True)
    for line in sys.stdin:
        job = json.loads(line)
        children: list[int] = []
        for process in job["processes"]:
            child = os.fork()
            if child == 0:
                become(process)
                return job["argv"]
            children.append(child)
        print(json.dumps(wait_for(children, time.monotonic() + job["timeout_s"])), flush=True)
    gc.unfreeze()  # or triton would report objects as leaked that were never freed
    return None


def become(process: dict[str, Any]) -> None:
    """Adopt a process's environment, input and outputs."""
    os.setpgid(0, 0)
    os.environ.clear()
    os.environ.update(process["environ"])
    move_to(os.environ.pop("TEST_NETNS", ""))
    files = (os.devnull, os.O_RDONLY), (process["out"], os.O_WRONLY), (process["err"], os.O_WRONLY)
    for descriptor, (path, flags) in enumerate(files):
        file = os.open(path, flags | os.O_APPEND)
        os.dup2(file, descriptor)
        os.close(file)
    faulthandler.enable()


def move_to(namespace: str) -> None:
    """Move to another network namespace, '' for none."""
    if namespace:
        file = os.open(namespace, os.O_RDONLY)
        if ctypes.CDLL(None, use_errno=True).setns(file, 0):
            raise OSError(ctypes.get_errno(), namespace)
        os.close(file)


def wait_for(children: list[int], deadline: float) -> list[int | None]:
    """Wait for processes; return their exit codes, minus the signal's number, or None for one that took too long."""
    codes: dict[int, int | None] = {}
    while len(codes) < len(children) and time.monotonic() < deadline:
        reap(children, codes)
        time.sleep(0.005)
    late = [child for child in children if child not in codes]
    for last_word in (signal.SIGABRT, signal.SIGKILL):
        for child in late:
            if child not in codes:
                os.kill(child, last_word)
        until = time.monotonic() + GRACE_S
        while any(child not in codes for child in late) and time.monotonic() < until:
            reap(children, codes)
            time.sleep(0.005)
    for child in children:
        kill_group(child)
    return [None if child in late else codes.get(child) for child in children]


def reap(children: list[int], codes: dict[int, int | None]) -> None:
    """Note the processes that have ended."""
    for child in children:
        if child not in codes:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                codes[child] = os.waitstatus_to_exitcode(status)


def kill_group(leader: int) -> None:
    """Kill what a process has left behind."""
    try:
        os.killpg(leader, signal.SIGKILL)
    except ProcessLookupError:
        return


if __name__ == "__main__":
    argv = main()
    if argv is not None:
        sys.argv[:] = argv
        runpy.run_path(argv[0], run_name="__main__")
