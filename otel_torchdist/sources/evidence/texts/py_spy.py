"""Stacks from `py-spy dump`, as text or with `--json`. A file may contain several dumps.

In text dumps, paths are relative to `sys.path` unless py-spy was run with `--full-filenames`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from msgspec import Meta

from otel_torchdist.model.names import CallSiteName
from otel_torchdist.model.rank_state.stacks import ThreadStack
from otel_torchdist.model.text import readable
from otel_torchdist.sources.evidence.facts import ProcessStacks
from otel_torchdist.sources.evidence.statements import MAX_TEXT, Statement, StatementKind, TextSource
from otel_torchdist.tape.names.decoding import DecodingError, decode_json

# py-spy is a separate program. It needs permission to read another process's memory: root, `CAP_SYS_PTRACE`, or the
# same user if `kernel.yama.ptrace_scope` is 0.

TIMEOUT_S: Final = 10.0
TRIES: Final = 3
"""Attempts to read the stacks: a running process may change them meanwhile."""
MAX_REASON: Final = 200


def program() -> str | None:
    """Return the path of py-spy; None if it is not installed."""
    beside_python = Path(sys.executable).with_name("py-spy")
    return shutil.which("py-spy") or (str(beside_python) if os.access(beside_python, os.X_OK) else None)


def dump(path: str, pid: int) -> tuple[Statement | None, str]:
    """Take the stacks of a process.

    Args:
        path: Path of py-spy.
        pid: The process.

    Returns:
        Its stacks and ''; or None and the reason.
    """
    reason = ""
    for _ in range(TRIES):
        content, reason = _output([path, "dump", "--json", "--nonblocking", "--pid", str(pid)])
        statements = statements_of_json(content, f"py-spy of process {pid}") if content else []
        if statements:
            return statements[0], ""
        if "denied" in reason.lower() or "permitted" in reason.lower():
            break
    return None, reason or "it returned no stacks"


def _output(command: list[str]) -> tuple[bytes, str]:
    try:
        # `subprocess.run` kills py-spy at a timeout, and also at Ctrl-C.
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return b"", f"it did not end within {TIMEOUT_S:g} s"
    except OSError as error:
        return b"", f"it cannot be started: {error.strerror}"
    if done.returncode == 0:
        return done.stdout, ""
    reason = done.stderr[:MAX_REASON].decode("utf-8", "replace").strip().partition("\n")[0]
    return b"", readable(reason, MAX_REASON)


MAX_THREADS: Final = 4_096
MAX_FRAMES: Final = 512
_PROCESS: Final = re.compile(r"Process (?P<pid>\d{1,9}): (?P<command>.*)")
_VERSION: Final = re.compile(r"^Python v\d+\.\d+", re.MULTILINE)
_THREAD: Final = re.compile(r'Thread (?P<id>0x[0-9A-Fa-f]+|\d{1,20}) \((?P<states>[a-z+]+)\)(?:: "(?P<name>.*)")?\s*$')
_INDENT: Final = "    "
_MAX_DIGITS: Final = 9
_TORCH: Final = ("torch/", "torchgen/", "functorch/")
_PACKAGES: Final = "/site-packages/"
_LIBRARY: Final = "/lib/python3/"


def is_text(head: str) -> bool:
    """Return whether a file that begins with `head` contains dumps as text."""
    return _VERSION.search(head) is not None and "\nThread " in head and _PROCESS.search(head) is not None


def statements_of_text(text: str, path: str) -> Iterator[Statement]:
    """Yield one statement for each dumped process."""
    process: tuple[int, re.Match[str]] | None = None
    threads: list[ThreadStack] = []
    holder: int | None = None
    for number, line in enumerate(text.splitlines(), 1):
        if (match := _PROCESS.match(line)) is not None:
            if process is not None:
                yield _statement(path, process, threads, holder)
            process, threads, holder = (number, match), [], None
        elif (match := _THREAD.match(line)) is not None:
            native_id = int(match["id"], 0)
            if "gil" in match["states"].split("+"):
                holder = native_id
            if len(threads) < MAX_THREADS:
                threads.append(ThreadStack(native_id, readable(match["name"] or "", MAX_TEXT), ()))
        elif threads and len(threads[-1].frames) < MAX_FRAMES and (site := _site(line)) is not None:
            last = threads[-1]
            threads[-1] = ThreadStack(last.thread, last.name, (*last.frames, site))
    if process is not None:
        yield _statement(path, process, threads, holder)


def _statement(
    path: str, process: tuple[int, re.Match[str]], threads: Iterable[ThreadStack], holder: int | None
) -> Statement:
    number, match = process
    stacks = ProcessStacks(tuple(threads), holder, readable(match["command"]))
    return _stacks(TextSource(path, number), int(match["pid"]), stacks)


def _stacks(source: TextSource, pid: int, stacks: ProcessStacks) -> Statement:
    text = f"py-spy: process {pid}, {len(stacks.threads)} threads"
    return Statement(StatementKind.STACKS, source, text, pid=pid, fact=stacks)


def _site(text: str) -> CallSiteName | None:
    """Return the call site on a line like `    function (file:line)`; None for other lines."""
    body = text.removeprefix(_INDENT).rstrip()
    begin = body.rfind(" (", 1, len(body) - 2)  # neither name is empty
    if not text.startswith(_INDENT) or not body.endswith(")") or begin < 0:
        return None
    function, location = body[:begin], body[begin + 2 : -1]
    file, _, line = location.rpartition(":")
    if not file or not line.isdecimal() or len(line) > _MAX_DIGITS:
        file, line = location, "0"
    if file.startswith(_TORCH):
        file = _PACKAGES + file
    elif not file.startswith(("/", "<")) and file.partition("/")[0].removesuffix(".py") in sys.stdlib_module_names:
        file = _LIBRARY + file
    return CallSiteName(readable(function, MAX_TEXT), readable(file), int(line))


_Number = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]


@dataclass(frozen=True, slots=True)
class _Frame:
    name: str
    filename: str
    line: Annotated[int, Meta(ge=-1, lt=1 << 31)] = 0


@dataclass(frozen=True, slots=True)
class _Process:
    command_line: str = ""


@dataclass(frozen=True, slots=True)
class _Thread:
    pid: _Number
    frames: tuple[_Frame, ...]
    thread_id: int = 0
    os_thread_id: _Number | None = None
    thread_name: str | None = None
    owns_gil: bool = False
    process_info: _Process | None = None


def statements_of_json(content: bytes, path: str) -> list[Statement]:
    """Return one statement for each process of a JSON dump; none for other content.

    `py-spy dump --subprocesses --json` writes the threads of all processes into one list.
    """
    try:
        threads = decode_json(content, tuple[_Thread, ...])
    except DecodingError:
        return []
    by_pid: dict[int, list[_Thread]] = {}
    for thread in threads[:MAX_THREADS]:
        by_pid.setdefault(thread.pid, []).append(thread)
    return [_stacks(TextSource(path, 0), pid, _of_threads(threads_of_pid)) for pid, threads_of_pid in by_pid.items()]


def _of_threads(threads: list[_Thread]) -> ProcessStacks:
    holder = next((thread.os_thread_id for thread in threads if thread.owns_gil), None)
    command = next((thread.process_info.command_line for thread in threads if thread.process_info is not None), "")
    return ProcessStacks(tuple(map(_of_thread, threads)), holder, readable(command))


def _of_thread(thread: _Thread) -> ThreadStack:
    frames = tuple(
        CallSiteName(readable(frame.name, MAX_TEXT), readable(frame.filename), frame.line)
        for frame in thread.frames[:MAX_FRAMES]
    )
    return ThreadStack(thread.os_thread_id or 0, readable(thread.thread_name or "", MAX_TEXT), frames)
