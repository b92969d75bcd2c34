"""An interpreter that has imported torch once and forks a process for every script that it is asked to run.

Importing torch takes seconds of a processor. A script that runs here runs as `__main__` of a process of its own, and is
a forked rank as a notebook launcher's ranks are. It ends as `forked_ranks.end` has it, or with the ordinary end of an
interpreter where a test is about that too.

It reads jobs as lines of JSON from its standard input. For each it writes a line with the ids of its processes, and one
with their exit codes when all have ended; see `warm_python`.
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import os
import runpy
import select
import signal
import sys
import time
from dataclasses import dataclass, field
from typing import Any

from tests.support.launch.forked_ranks import IMPORTED, ORDINARY_END, end, import_once, show_as

POLL_S = 0.05
"""Launchers poll for processes that have ended; until they have seen one, its exit code can be read from outside."""
GRACE_S = 5.0
"""How long a process that has exceeded its time gets to write its stacks."""


@dataclass
class Job:
    """Processes that run one script.

    Attributes:
        number: What the other side calls it.
        deadline: Monotonic seconds at which it has exceeded its time.
        running: Process ids by descriptor.
        codes: Exit codes by process id, minus the signal's number; None for one that has exceeded its time.
        last_words: What is sent to those that have exceeded their time, the next one last.
    """

    number: int
    deadline: float
    running: dict[int, int] = field(default_factory=dict[int, int])
    codes: dict[int, int | None] = field(default_factory=dict[int, "int | None"])
    last_words: list[int] = field(default_factory=lambda: [signal.SIGKILL, signal.SIGABRT])

    def reap(self, descriptor: int) -> None:
        """Note a process that has ended."""
        child = self.running.pop(descriptor)
        os.close(descriptor)
        _, status = os.waitpid(child, 0)
        is_late = len(self.last_words) < 2
        self.codes[child] = None if is_late else os.waitstatus_to_exitcode(status)

    def end(self) -> None:
        """Kill what its processes have left behind, once all have ended, and report how they ended."""
        for child in self.codes:
            kill_group(child)
        answer(self.number, "codes", list(self.codes.values()))

    def hurry(self) -> None:
        """Stop what has exceeded its time: it writes its stacks, and is then killed."""
        if time.monotonic() < self.deadline or not self.last_words:
            return
        number = self.last_words.pop()
        self.deadline += GRACE_S
        for child in self.running.values():
            os.kill(child, number)


def main() -> list[str] | None:
    """Serve jobs until the input ends; in a forked child, return what it has to run."""
    import_once((*IMPORTED, "tests.support.ranks.rank", *sys.argv[1:]))
    print("ready", flush=True)
    return serve()


def run(script: str) -> int:
    """Run a script as `__main__`; returns its exit code, minus the signal's number for one that ends it."""
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as asked:
        if asked.code is None or isinstance(asked.code, int):
            return asked.code or 0
        print(asked.code, file=sys.stderr)
        return 1
    except BaseException as error:
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
        sys.excepthook(type(error), error, error.__traceback__)
        return -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    return 0


def serve() -> list[str] | None:
    """Fork and reap until the input ends and all jobs are done; in a child, return what it has to run."""
    jobs: list[Job] = []
    asked, is_open = b"", True
    while is_open or jobs:
        ready = wait_for_something(jobs, is_open)
        if 0 in ready:
            data = os.read(0, 1 << 20)
            is_open = bool(data)
            *lines, asked = (asked + data).split(b"\n")
            for line in lines:
                job = fork_all(json.loads(line))
                if isinstance(job, list):
                    return job
                jobs.append(job)
        time.sleep(POLL_S * bool(ready - {0}))
        for job in jobs:
            for descriptor in [one for one in job.running if one in ready]:
                job.reap(descriptor)
            job.hurry()
        for job in [job for job in jobs if not job.running]:
            jobs.remove(job)
            job.end()
    return None


def wait_for_something(jobs: list[Job], is_open: bool) -> set[int]:
    """The descriptors of processes that have ended, and 0 if there is input."""
    poll = select.poll()
    for descriptor in (*[0] * is_open, *(one for job in jobs for one in job.running)):
        poll.register(descriptor, select.POLLIN)
    soonest = min((job.deadline for job in jobs if job.last_words), default=None)
    timeout_ms = None if soonest is None else max(0.0, soonest - time.monotonic()) * 1000 + 1
    return {descriptor for descriptor, _ in poll.poll(timeout_ms)}


def fork_all(asked: dict[str, Any]) -> Job | list[str]:
    """Fork a job's processes; in a child, return what it has to run."""
    job = Job(asked["number"], time.monotonic() + asked["timeout_s"])
    for process in asked["processes"]:
        child = os.fork()
        if child == 0:
            become(process)
            show_as([sys.executable, *asked["argv"]], os.environ)
            return asked["argv"]
        job.running[os.pidfd_open(child)] = child
        job.codes[child] = None
    answer(job.number, "pids", list(job.running.values()))
    return job


def answer(number: int, kind: str, values: list[Any]) -> None:
    """Write a line about a job."""
    print(json.dumps({"number": number, kind: values}), flush=True)


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
        if os.environ.pop(ORDINARY_END, ""):
            runpy.run_path(argv[0], run_name="__main__")
        else:
            end(run(argv[0]))
    else:
        end(0)
