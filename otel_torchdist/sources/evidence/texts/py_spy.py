"""Stacks as `py-spy dump` writes them, as text or with `--json`; several dumps may stand in one file.

In its text, files are relative to `sys.path` unless it was run with `--full-filenames`.
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
from otel_torchdist.model.naming import readable
from otel_torchdist.model.stacks import ThreadStack
from otel_torchdist.sources.evidence.facts import SeenStacks
from otel_torchdist.sources.evidence.statements import MAX_TEXT, Statement, StatementKind, TextSource
from otel_torchdist.tape.names.decoding import DecodingError, decode_json

# py-spy is a program of its own; it needs the right to read another process's memory: root, `CAP_SYS_PTRACE`, or the
# same user where `kernel.yama.ptrace_scope` is 0.

TIMEOUT_S: Final = 10.0
TRIES: Final = 3
"""A running process may change its stack while it is read."""
MAX_REASON: Final = 200


def program() -> str | None:
    """Return the path of py-spy; None if it is not installed."""
    beside = Path(sys.executable).with_name("py-spy")
    return shutil.which("py-spy") or (str(beside) if os.access(beside, os.X_OK) else None)


def dump(path: str, pid: int) -> tuple[Statement | None, str]:
    """Take the stacks of a process.

    Args:
        path: Of py-spy.
        pid: The process.

    Returns:
        Its stacks; or None and the reason.
    """
    reason = ""
    for _ in range(TRIES):
        content, reason = _output([path, "dump", "--json", "--nonblocking", "--pid", str(pid)])
        found = statements_of_json(content, f"py-spy of process {pid}") if content else []
        if found:
            return found[0], ""
        if "denied" in reason.lower() or "permitted" in reason.lower():
            break
    return None, reason or "it returned no stacks"


def _output(command: list[str]) -> tuple[bytes, str]:
    try:
        # At Ctrl-C, too, this kills it before it goes on.
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return b"", f"it did not end within {TIMEOUT_S:g} s"
    except OSError as error:
        return b"", f"it cannot be started: {error.strerror}"
    if done.returncode == 0:
        return done.stdout, ""
    said = done.stderr[:MAX_REASON].decode("utf-8", "replace").strip().partition("\n")[0]
    return b"", readable(said, MAX_REASON)


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
    """Whether a file that begins like this holds dumps in text form."""
    return _VERSION.search(head) is not None and "\nThread " in head and _PROCESS.search(head) is not None


def statements_of_text(text: str, path: str) -> Iterator[Statement]:
    """Yield one statement for each dumped process."""
    process: tuple[int, re.Match[str]] | None = None
    threads: list[ThreadStack] = []
    holder: int | None = None
    for number, line in enumerate(text.splitlines(), 1):
        if (found := _PROCESS.match(line)) is not None:
            if process is not None:
                yield _statement(path, process, threads, holder)
            process, threads, holder = (number, found), [], None
        elif (found := _THREAD.match(line)) is not None:
            native = int(found["id"], 0)
            if "gil" in found["states"].split("+"):
                holder = native
            if len(threads) < MAX_THREADS:
                threads.append(ThreadStack(native, readable(found["name"] or "", MAX_TEXT), ()))
        elif threads and len(threads[-1].frames) < MAX_FRAMES and (site := _site(line)) is not None:
            last = threads[-1]
            threads[-1] = ThreadStack(last.thread, last.name, (*last.frames, site))
    if process is not None:
        yield _statement(path, process, threads, holder)


def _statement(
    path: str, process: tuple[int, re.Match[str]], threads: Iterable[ThreadStack], holder: int | None
) -> Statement:
    number, found = process
    stacks = SeenStacks(tuple(threads), holder, readable(found["command"]))
    return _stacks(TextSource(path, number), int(found["pid"]), stacks)


def _stacks(source: TextSource, pid: int, stacks: SeenStacks) -> Statement:
    text = f"py-spy: process {pid}, {len(stacks.threads)} threads"
    return Statement(StatementKind.STACKS, source, text, pid=pid, fact=stacks)


def _site(text: str) -> CallSiteName | None:
    """Return the call site on a line like `    function (file:line)`; `None` for other lines."""
    body = text.removeprefix(_INDENT).rstrip()
    begin = body.rfind(" (", 1, len(body) - 2)  # neither name is empty
    if not text.startswith(_INDENT) or not body.endswith(")") or begin < 0:
        return None
    function, place = body[:begin], body[begin + 2 : -1]
    file, _, line = place.rpartition(":")
    if not file or not line.isdecimal() or len(line) > _MAX_DIGITS:
        file, line = place, "0"
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
    """Return one statement for each process of a JSON dump; none if it is something else.

    `py-spy dump --subprocesses --json` writes the threads of all processes into one list.
    """
    try:
        threads = decode_json(content, tuple[_Thread, ...])
    except DecodingError:
        return []
    by_pid: dict[int, list[_Thread]] = {}
    for thread in threads[:MAX_THREADS]:
        by_pid.setdefault(thread.pid, []).append(thread)
    return [_stacks(TextSource(path, 0), pid, _of_threads(ones)) for pid, ones in by_pid.items()]


def _of_threads(threads: list[_Thread]) -> SeenStacks:
    holder = next((one.os_thread_id for one in threads if one.owns_gil), None)
    command = next((one.process_info.command_line for one in threads if one.process_info is not None), "")
    return SeenStacks(tuple(_of_thread(one) for one in threads), holder, readable(command))


def _of_thread(thread: _Thread) -> ThreadStack:
    frames = tuple(
        CallSiteName(readable(frame.name, MAX_TEXT), readable(frame.filename), frame.line)
        for frame in thread.frames[:MAX_FRAMES]
    )
    return ThreadStack(thread.os_thread_id or 0, readable(thread.thread_name or "", MAX_TEXT), frames)
