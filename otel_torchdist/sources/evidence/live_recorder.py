"""Gets the contents of PyTorch's flight recorder from a live job, in three ways.

- Dumps that ranks have already written, at a timeout or on request.
- The named pipe of a rank (`TORCH_FR_DEBUG_INFO_PIPE_FILE`, formerly `TORCH_NCCL_DEBUG_INFO_PIPE_FILE`): a byte in it
  makes the rank write a dump. Used only if the user asks for it.
- The server of `torch.distributed.debug`, which asks all ranks over HTTP.
"""

from __future__ import annotations

import os
import re
import stat
import time
import urllib.request
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from otel_torchdist.model.text import readable
from otel_torchdist.node.processes.state import belongs_to
from otel_torchdist.sources.evidence.live_ranks import LiveProcess
from otel_torchdist.tape.identity import process_start_ticks

_FILES: Final = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
_PIPES: Final = ("TORCH_FR_DEBUG_INFO_PIPE_FILE", "TORCH_NCCL_DEBUG_INFO_PIPE_FILE")
_IN_CACHE: Final = "torch/comm_lib_trace_rank_"
"""Prefix of dumps in the cache directory, since 2.8."""
_OLD_PREFIX: Final = "/tmp/nccl_trace_rank_"
"""Prefix of dumps before 2.8."""
WAIT_S: Final = 20.0
"""Time to wait for a dump: the first dump with stacks needs the GIL and several seconds."""
PAUSE_S: Final = 0.2
"""Time between two searches for dumps."""
DEBUG_PORT: Final = 25_999
"""Default port of `start_debug_server`."""
FETCH_S: Final = 75.0
"""Timeout of a request: the server waits up to 60 s for a rank that does not answer."""
MAX_PAGE: Final = 256 << 20
_ANSWER: Final = re.compile(rb"<h2>Rank (\d{1,7}): [^<]*</h2>\s*<pre>")
_END_OF_ANSWER: Final = b"</pre>"


def dumps_of(process: LiveProcess) -> list[Path]:
    """Return the dumps that a rank has written since its start; none if its environment cannot be read."""
    if process.rank is None or not process.variables:
        return []
    started_s = _started_s(process.pid)
    return [path for path in _dump_paths(process) if _written_s(path) >= started_s]


def _dump_paths(process: LiveProcess) -> list[Path]:
    named = [process.variables[name] for name in _FILES if process.variables.get(name)]
    home = process.variables.get("HOME", "")
    cache = process.variables.get("XDG_CACHE_HOME") or (f"{home}/.cache" if home else "")
    prefixes = named[:1] or [*([f"{cache}/{_IN_CACHE}"] if cache else []), _OLD_PREFIX]
    return [Path(f"{prefix}{process.rank}") for prefix in prefixes if prefix.startswith("/")]


def request_dumps(processes: Iterable[LiveProcess], wait_s: float = WAIT_S) -> tuple[list[Path], list[str]]:
    """Request a dump from each rank through its pipe, and wait for the dumps.

    Args:
        processes: The ranks.
        wait_s: Timeout.

    Returns:
        The dumps that were written, and a line for each rank without a pipe or without a dump in time.
    """
    asked: dict[int, LiveProcess] = {}
    problems: list[str] = []
    before = time.time()
    for process in processes:
        problem = _ask(process)
        if problem:
            problems.append(f"{_name(process)}: {problem}")
        else:
            asked[process.pid] = process
    dumps: dict[int, Path] = {}
    sizes: dict[Path, int] = {}
    deadline = time.monotonic() + wait_s
    while len(dumps) < len(asked) and time.monotonic() < deadline:
        for pid, process in asked.items():
            # File times lag behind the clock by up to one tick of the kernel.
            written = next((path for path in _dump_paths(process) if _written_s(path) >= before - 0.1), None)
            if written is not None and _is_complete(written, sizes):
                dumps[pid] = written
        time.sleep(PAUSE_S)
    silent = [process for pid, process in asked.items() if pid not in dumps]
    problems += [f"{_name(process)}: no dump within {wait_s:g} s" for process in silent]
    return list(dumps.values()), problems


def _is_complete(path: Path, sizes: dict[Path, int]) -> bool:
    """Return whether a file has not grown since the last call. `sizes` holds the sizes of the last call."""
    try:
        size = path.stat().st_size
    except OSError:
        return False
    before, sizes[path] = sizes.get(path, -1), size
    return size > 0 and size == before


def _ask(process: LiveProcess) -> str:
    """Write to a rank's pipe. Return '', or the reason if that is impossible."""
    prefix = next((process.variables[name] for name in _PIPES if process.variables.get(name)), "")
    if not prefix or process.rank is None:
        return f"it has no pipe for requesting a dump ({_PIPES[1]})"
    path = Path(f"{prefix}{process.rank}.pipe")
    try:
        pipe = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError as error:  # also if the pipe has no reader
        return f"{readable(str(path))}: {error.strerror}"
    try:
        status = os.fstat(pipe)
        if not stat.S_ISFIFO(status.st_mode):
            return f"{readable(str(path))}: not a named pipe"
        # The rank's user chose the path. As root, do not write to another user's pipe for it.
        if os.geteuid() == 0 and not belongs_to(process.pid, status.st_uid):
            return f"{readable(str(path))}: belongs to user {status.st_uid}, not to the rank's user"
        os.write(pipe, b"1")
    except OSError as error:
        return f"{readable(str(path))}: {error.strerror}"
    finally:
        os.close(pipe)
    return ""


def _name(process: LiveProcess) -> str:
    return f"rank {process.rank}" if process.rank is not None else f"process {process.pid}"


def _started_s(pid: int) -> float:
    """Return the start time of a process, by the wall clock; infinity if it is gone.

    The times of its folder in /proc do not help: they are set at the first access.
    """
    ticks = process_start_ticks(pid)
    if ticks is None:
        return float("inf")
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + (ticks - 1) / os.sysconf("SC_CLK_TCK")


def _written_s(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def has_debug_server(processes: Iterable[LiveProcess]) -> bool:
    """Return whether one of these processes listens on the default port of the debug server."""
    inodes = _listening_at(DEBUG_PORT)
    return bool(inodes) and any(inodes & _sockets_of(process.pid) for process in processes)


def ask_debug_server() -> tuple[Mapping[int, bytes], str]:
    """Return the recorder's contents as JSON by rank, and '' or the reason for having none."""
    url = f"http://127.0.0.1:{DEBUG_PORT}/fr_trace_json"
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=FETCH_S) as answer:
            page = answer.read(MAX_PAGE)
    except OSError as error:
        return {}, f"{url}: {readable(str(error), 200)}"
    answers = _answers_in(page)
    return answers, "" if answers else f"{url}: it returned no readable answer"


def _answers_in(page: bytes) -> dict[int, bytes]:
    answers: dict[int, bytes] = {}
    head = _ANSWER.search(page)
    while head is not None and (end := page.find(_END_OF_ANSWER, head.end())) >= 0:
        answers[int(head[1])] = page[head.end() : end]
        head = _ANSWER.search(page, end)
    return answers


def _listening_at(port: int) -> set[str]:
    inodes: set[str] = set()
    for name in ("tcp", "tcp6"):
        try:
            lines = Path("/proc/net", name).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            words = line.split()
            if len(words) > 9 and words[1].endswith(f":{port:04X}") and words[3] == "0A":
                inodes.add(f"socket:[{words[9]}]")
    return inodes


def _sockets_of(pid: int) -> set[str]:
    folder = Path(f"/proc/{pid}/fd")
    sockets: set[str] = set()
    try:
        names = os.listdir(folder)
    except OSError:
        return sockets
    for name in names:
        try:
            sockets.add(os.readlink(folder / name))
        except OSError:
            continue
    return sockets
