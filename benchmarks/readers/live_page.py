"""Measures the cost of the live page for the agent, with no, one and ten visitors, and the bytes of a poll.

Command line: `python -m benchmarks.readers.live_page`.
"""

from __future__ import annotations

import argparse
import gzip
import http.client
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from subprocess import DEVNULL, Popen
from typing import Final

from benchmarks.results.sections import Section
from otel_torchdist import environment_variables as env
from otel_torchdist.model.kinds import How, RecordKind, RunIdState
from otel_torchdist.model.names import CallSiteName, GroupName, SignatureName
from otel_torchdist.show.serving.scrape_target import ScrapeTarget
from otel_torchdist.tape.identity import identify
from otel_torchdist.tape.writer import TapeWriter

CAPACITY: Final = 1024
VISITORS: Final = (0, 1, 10)
POLL_S: Final = 1.0
START_S: Final = 60.0
WARM_UP_S: Final = 12.0
"""Seconds of warm-up, longer than the agent remembers a visitor."""
_PROGRAM: Final = "import sys; from otel_torchdist.agent.launch.background import main; main(sys.argv[1])"
_TICKS: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Setting:
    """The settings of a measurement.

    Attributes:
        ranks: Number of ranks of the node.
        calls_per_s: Calls per second of each rank.
        length_s: Seconds for each number of visitors.
    """

    ranks: int
    calls_per_s: int
    length_s: float


QUICK: Final = (Setting(8, 100, 5.0),)
USUAL: Final = (Setting(8, 100, 30.0), Setting(512, 2, 30.0))


def measure(settings: tuple[Setting, ...]) -> Section:
    """Let ranks communicate, visit the page of their agent, and measure the agent's processor time."""
    rows: list[tuple[str, ...]] = []
    data: dict[str, dict[str, float]] = {}
    for setting in settings:
        found = _measured(setting)
        data[f"{setting.ranks} ranks"] = found
        shares = (f"{found[f'{count} visitors']:.1%}" for count in VISITORS)
        plain, packed = found["bytes"], found["bytes packed"]
        rows.append((f"{setting.ranks}, {setting.calls_per_s}/s", *shares, f"{plain:,.0f}", f"{packed:,.0f}"))
    columns = ("ranks and calls", *(f"{count} visitors" for count in VISITORS), "bytes of a poll", "compressed")
    notes = (
        "Processor time of the agent, as a share of one core.",
        f"A visitor polls every {POLL_S:g} s, compressed.",
    )
    return Section("live_page", "The live page", columns, rows, notes, (), data)


def _measured(setting: Setting) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="otel-torchdist-bench-", dir="/dev/shm") as base:
        job = Path(base) / "job-0123456789abcdef"
        job.mkdir(mode=0o700)
        with _ranks(job, setting), _agent(job) as agent:
            target = ScrapeTarget(job).last_target()
            found: dict[str, float] = {}
            for count in VISITORS:
                found[f"{count} visitors"] = _share(agent, target, count, setting.length_s)
            body = gzip.decompress(_poll(target))
            return found | {"bytes": len(body), "bytes packed": len(_poll(target))}


def _share(agent: int, target: str, visitors: int, length_s: float) -> float:
    over = threading.Event()
    threads = [threading.Thread(target=_visit, args=(target, over, nth / visitors)) for nth in range(visitors)]
    for thread in threads:
        thread.start()
    time.sleep(WARM_UP_S)
    before, began = _processor_s(agent), time.monotonic()
    time.sleep(length_s)
    share = (_processor_s(agent) - before) / (time.monotonic() - began)
    over.set()
    for thread in threads:
        thread.join()
    return share


def _visit(target: str, over: threading.Event, delay_s: float) -> None:
    over.wait(delay_s)
    while not over.is_set():
        _poll(target)
        over.wait(POLL_S)


def _poll(target: str) -> bytes:
    connection = http.client.HTTPConnection(target, timeout=10)
    connection.request("GET", "/live.json", headers={"Accept-Encoding": "gzip"})
    try:
        return connection.getresponse().read()
    finally:
        connection.close()


def _processor_s(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


@contextmanager
def _agent(job: Path) -> Iterator[int]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")} | {
        env.OTEL_PYTHON_TORCHDIST_TAPE_DIR: str(job.parent),
        env.OTEL_EXPORTER_PROMETHEUS_PORT: "0",
        "OTEL_TRACES_EXPORTER": "none",
    }
    with Popen([sys.executable, "-c", _PROGRAM, str(job)], env=environment, stdin=DEVNULL) as process:
        try:
            deadline = time.monotonic() + START_S
            while not ScrapeTarget(job).last_target():
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError("the agent does not serve its page")
                time.sleep(0.05)
            yield process.pid
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)


@contextmanager
def _ranks(directory: Path, setting: Setting) -> Iterator[None]:
    """Run a process that writes the tapes of all ranks, with one group and one kind of call."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    with ExitStack() as stack:
        process = context.Process(target=_write, args=(theirs, directory, setting), daemon=True)
        process.start()
        stack.callback(process.join)
        stack.callback(process.terminate)
        ours.recv()
        yield


def _write(connection: Connection, directory: Path, setting: Setting) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ranks = [_Rank(directory, rank, setting.ranks) for rank in range(setting.ranks)]
    connection.send(True)
    sequence, next_s = 0, time.monotonic()
    while True:
        sequence += 1
        for rank in ranks:
            rank.call(sequence)
        next_s += 1 / setting.calls_per_s
        time.sleep(max(next_s - time.monotonic(), 0))


class _Rank:
    """A rank whose calls take a millisecond."""

    def __init__(self, directory: Path, rank: int, size: int) -> None:
        self._tape = TapeWriter(directory, identify(rank, rank, size, CAPACITY))
        self._tape.set_run_id(0x11FE, RunIdState.AGREED)
        names = self._tape.names
        self._group = names.intern(GroupName("0", "default_pg", tuple(range(size)), 0, "gloo", True))
        self._signature = names.intern(SignatureName("all_reduce", "sum", ((1024,),), ("bfloat16",), "cpu", 1))
        self._site = names.intern(CallSiteName("Trainer.step", "/srv/train/trainer.py", 40))

    def call(self, sequence: int) -> None:
        """Enter a call and end it."""
        now = time.monotonic_ns()
        number = self._tape.begin(
            now, sequence, sequence, 2048, self._group, self._signature, self._site, 0, -1, 0, 1,
            RecordKind.OPERATION, 0,
        )  # fmt: skip
        self._tape.complete(number, now, now + 1_000_000, How.CALL)
        self._tape.step_ended(sequence, now + 1_000_000, sequence)
        self._tape.beat()


def main() -> None:
    """Measure, and print the table."""
    from benchmarks.results.report import show

    parser = argparse.ArgumentParser(prog="python -m benchmarks.readers.live_page", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="run only a few seconds, to check that the benchmark works"
    )
    show(measure(QUICK if parser.parse_args().quick else USUAL))


if __name__ == "__main__":
    main()
