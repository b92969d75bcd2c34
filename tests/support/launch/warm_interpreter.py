"""An interpreter that has imported torch once and forks a process for every script that it is asked to run.

Importing torch takes seconds of a processor. A script that runs here runs as `__main__` of a process of its own, and is
a forked rank as a notebook launcher's ranks are. It ends as `forked_ranks.end` has it, or with the ordinary end of an
interpreter where a test is about that too.

It reads jobs as lines of JSON. For each it writes a line with the ids of its processes, and one with their exit codes
when all have ended; see `warm_python`. It ends when no one is left who could ask. One process asks through its standard
input, or several through connections to a socket that it inherits; then it runs in the background.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import glob
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.support.launch.forked_ranks import IMPORTED, ORDINARY_END, end, import_once, show_as

POLL_S = 0.05
"""Launchers poll for processes that have ended; until they have seen one, its exit code can be read from outside."""
GRACE_S = 5.0
"""How long a process that has exceeded its time gets to write its stacks."""


@dataclass(eq=False)
class Client:
    """Who asks for jobs.

    Attributes:
        reads: The descriptor on which its jobs come.
        writes: The descriptor for answers.
        begun: The beginning of a line whose end has not come yet.
    """

    reads: int
    writes: int
    begun: bytes = b""

    def lines(self) -> list[bytes] | None:
        """The lines that have come; None at the end."""
        try:
            data = os.read(self.reads, 1 << 20)
        except ConnectionResetError:
            data = b""
        *lines, self.begun = (self.begun + data).split(b"\n")
        return lines if data else None

    def answer(self, line: str) -> None:
        """Write a line, unless it has gone."""
        try:
            os.write(self.writes, line.encode() + b"\n")
        except (BrokenPipeError, ConnectionResetError):
            return

    def close(self) -> None:
        """Close its descriptors."""
        for descriptor in {self.reads, self.writes}:
            os.close(descriptor)


@dataclass
class Job:
    """Processes that run one script.

    Attributes:
        client: Who has asked for it.
        number: What the other side calls it.
        deadline: Monotonic seconds at which it has exceeded its time.
        running: Process ids by descriptor.
        codes: Exit codes by process id, minus the signal's number; None for one that has exceeded its time.
        last_words: What is sent to those that have exceeded their time, the next one last.
        left: Process ids of what those have started: a launcher's ranks are in sessions of their own.
    """

    client: Client
    number: int
    deadline: float
    running: dict[int, int] = field(default_factory=dict[int, int])
    codes: dict[int, int | None] = field(default_factory=dict[int, "int | None"])
    last_words: list[int] = field(default_factory=lambda: [signal.SIGKILL, signal.SIGABRT])
    left: set[int] = field(default_factory=set[int])

    def reap(self, descriptor: int) -> None:
        """Note a process that has ended."""
        child = self.running.pop(descriptor)
        os.close(descriptor)
        _, status = os.waitpid(child, 0)
        is_late = len(self.last_words) < 2
        self.codes[child] = None if is_late else os.waitstatus_to_exitcode(status)

    def end(self) -> None:
        """Kill what its processes have left behind, once all have ended, and report how they ended."""
        for child in (*self.codes, *self.left):
            kill_group(child)
        self.answer("codes", list(self.codes.values()))

    def answer(self, kind: str, values: list[Any]) -> None:
        """Write a line about it."""
        self.client.answer(json.dumps({"number": self.number, kind: values}))

    def hurry(self) -> None:
        """Stop what has exceeded its time: it writes its stacks, and is then killed."""
        if time.monotonic() < self.deadline or not self.last_words:
            return
        number = self.last_words.pop()
        self.deadline += GRACE_S
        for child in self.running.values():
            started = descendants(child)
            if number == signal.SIGABRT:
                show_stacks(started, f"/proc/{child}/fd/2")
            self.left.update(started)
            os.kill(child, number)


def main() -> list[str] | None:
    """Serve jobs until no one asks any more; in a forked child, return what it has to run.

    The first argument is the descriptor of the socket on which those who ask connect, and '' for standard input.
    """
    listener = socket.socket(fileno=int(sys.argv[1])) if sys.argv[1] else None
    if listener is not None and os.fork():
        os._exit(0)
    import_once((*IMPORTED, "tests.support.ranks.rank", *sys.argv[2:]))
    return Server(listener).serve()


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


class Server:
    """Forks and reaps."""

    def __init__(self, listener: socket.socket | None) -> None:
        """Greet who asks first.

        Args:
            listener: Where those who ask connect; without it, one asks through standard input.
        """
        self._listener = listener
        self._jobs: list[Job] = []
        self._clients: list[Client] = []
        if listener is None:
            self._greet(Client(0, 1))
        else:
            self._accept(listener)  # who has started us has connected before

    def serve(self) -> list[str] | None:
        """Fork and reap until no one asks any more and all jobs are done; in a child, return what it has to run."""
        while self._clients or self._jobs:
            ready = self._wait_for_something()
            self._reap(ready)  # before anything is opened: that may get the number of what has just been closed
            for client in [one for one in self._clients if one.reads in ready]:
                child = self._take(client)
                if child is not None:
                    return child
            if self._listener is not None and self._listener.fileno() in ready:
                self._accept(self._listener)
        return None

    def _accept(self, listener: socket.socket) -> None:
        connection = listener.accept()[0].detach()
        self._greet(Client(connection, connection))

    def _greet(self, client: Client) -> None:
        client.answer("ready")
        self._clients.append(client)

    def _take(self, client: Client) -> list[str] | None:
        """Fork what a client asks for; in a child, return what it has to run."""
        lines = client.lines()
        if lines is None:
            self._clients.remove(client)
            self._leave(client)
        for line in lines or ():
            job = fork_all(json.loads(line), client, self._leave_all)
            if isinstance(job, list):
                return job
            self._jobs.append(job)
        return None

    def _leave_all(self) -> None:
        """In a child, close what is the server's: who asks would wait for the end of a connection."""
        if self._listener is None:
            return  # standard input and output, which a child replaces
        self._listener.close()
        for client in {*self._clients, *(job.client for job in self._jobs)}:
            client.close()

    def _leave(self, client: Client) -> None:
        """Close a client's descriptors once it asks no more and knows the ends of all its jobs."""
        if client not in self._clients and all(job.client is not client for job in self._jobs):
            client.close()

    def _reap(self, ready: set[int]) -> None:
        ended = [(job, descriptor) for job in self._jobs for descriptor in job.running if descriptor in ready]
        time.sleep(POLL_S * bool(ended))
        for job, descriptor in ended:
            job.reap(descriptor)
        for job in self._jobs:
            job.hurry()
        for job in [job for job in self._jobs if not job.running]:
            self._jobs.remove(job)
            job.end()
            self._leave(job.client)

    def _wait_for_something(self) -> set[int]:
        """The descriptors of processes that have ended, and of clients that have written something."""
        poll = select.poll()
        if self._listener is not None:
            poll.register(self._listener, select.POLLIN)
        running = (one for job in self._jobs for one in job.running)
        for descriptor in (*(client.reads for client in self._clients), *running):
            poll.register(descriptor, select.POLLIN)
        soonest = min((job.deadline for job in self._jobs if job.last_words), default=None)
        timeout_ms = None if soonest is None else max(0.0, soonest - time.monotonic()) * 1000 + 1
        return {descriptor for descriptor, _ in poll.poll(timeout_ms)}


def fork_all(asked: dict[str, Any], client: Client, in_child: Callable[[], None]) -> Job | list[str]:
    """Fork a job's processes; in a child, return what it has to run."""
    job = Job(client, asked["number"], time.monotonic() + asked["timeout_s"])
    for process in asked["processes"]:
        child = os.fork()
        if child == 0:
            in_child()
            become(process)
            show_as([sys.executable, *asked["argv"]], os.environ)
            return asked["argv"]
        job.running[os.pidfd_open(child)] = child
        job.codes[child] = None
    job.answer("pids", list(job.running.values()))
    return job


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


def show_stacks(pids: list[int], file: str) -> None:
    """Append the stacks of processes to a file, if py-spy is installed."""
    spy = os.path.join(os.path.dirname(sys.executable), "py-spy")
    with contextlib.suppress(OSError, subprocess.TimeoutExpired), open(file, "a") as errors:
        for pid in pids:
            subprocess.run([spy, "dump", "--pid", str(pid)], stdout=errors, stderr=errors, timeout=20)


def descendants(pid: int) -> list[int]:
    """The processes that a process has started, and theirs, as long as they have not been left alone."""
    found: list[int] = []
    for path in glob.glob(f"/proc/{pid}/task/*/children"):
        with contextlib.suppress(OSError), open(path) as file:
            for child in map(int, file.read().split()):
                found += [child, *descendants(child)]
    return found


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
