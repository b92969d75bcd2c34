"""Measures the memory of an agent with eight busy ranks.

Command line: `python -m benchmarks.readers.agent_memory --minutes 10`. The agent is started as by a rank, in its own
process, with the default span budget. The ranks are only tapes.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from subprocess import DEVNULL, Popen, TimeoutExpired
from typing import Final
from urllib.request import urlopen

from opentelemetry.sdk.environment_variables import OTEL_EXPORTER_OTLP_ENDPOINT

from benchmarks.readers.agent_process import READ_S, sum_of
from benchmarks.readers.busy_ranks import CALLS_PER_SECOND, busy_ranks
from benchmarks.readers.busy_tape import WORLD_SIZE
from benchmarks.receivers.receivers import GRPC, Receiver, span_receiver
from benchmarks.results.recorded import require_equal
from benchmarks.results.report import show
from benchmarks.results.sections import Section
from benchmarks.results.spread import Spread
from otel_torchdist import environment_variables as env
from otel_torchdist.show.serving.scrape_target import ScrapeTarget

MB: Final = 1e6
LOOK_S: Final = 0.5
START_S: Final = 180.0
END_S: Final = 10.0
HOUR_S: Final = 3600.0
_PROGRAM: Final = "import sys; from otel_torchdist.agent.launch.background import main; main(sys.argv[1])"
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Window:
    """The times of the observation.

    Attributes:
        warm_up_s: Seconds before it, in which caches fill and the connection is made.
        length_s: Seconds of the observation.
    """

    warm_up_s: float
    length_s: float


USUAL: Final = Window(warm_up_s=20.0, length_s=60.0)
QUICK: Final = Window(warm_up_s=0.5, length_s=1.5)


@dataclass(frozen=True, slots=True)
class MemorySample:
    """The state of the agent at one moment.

    Attributes:
        at_s: Monotonic time.
        private: Anonymous memory in bytes.
        processor_s: Processor time so far.
    """

    at_s: float
    private: int
    processor_s: float


@dataclass(frozen=True, slots=True)
class Sums:
    """The counters on the agent's `/metrics` at the end.

    Attributes:
        operations: Number of operations read.
        records_lost: Number of records overwritten before they were read.
        spans_dropped: Number of spans not exported.
    """

    operations: int
    records_lost: int
    spans_dropped: int


def measure(window: Window) -> Section:
    """Let ranks communicate, and observe the agent's memory.

    Raises:
        RuntimeError: The agent has not started, or not read what was recorded.
    """
    with (
        span_receiver() as receiver,
        tempfile.TemporaryDirectory(prefix="otel-torchdist-bench-", dir="/dev/shm") as base,
    ):
        job = Path(base) / "job-0123456789abcdef"
        job.mkdir(mode=0o700)
        with busy_ranks(job) as ranks, _agent(job, receiver) as agent:
            time.sleep(window.warm_up_s)
            before = receiver.received()
            samples = _look(agent, window.length_s)
            spans = receiver.received() - before
            made = ranks.stop()
            sums = _sums_when_read(job, made)
    return _section(samples, spans, sums, receiver, window)


@contextmanager
def _agent(job: Path, receiver: Receiver) -> Iterator[int]:
    """Wait until the agent of a job directory serves `/metrics`; return its process id."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")} | {
        OTEL_EXPORTER_OTLP_ENDPOINT: receiver.endpoints[GRPC],
        env.OTEL_PYTHON_TORCHDIST_TAPE_DIR: str(job.parent),
    }
    with Popen([sys.executable, "-c", _PROGRAM, str(job)], env=environment, stdin=DEVNULL) as process:
        try:
            deadline = time.monotonic() + START_S
            while not ScrapeTarget(job).last_target():
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError("the agent does not serve its metrics")
                time.sleep(0.05)
            yield process.pid
        finally:
            _end(process)


def _end(process: Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(END_S)
    except TimeoutExpired:
        process.kill()


def _look(agent: int, length_s: float) -> list[MemorySample]:
    samples = [_now(agent)]
    while len(samples) < 3 or samples[-1].at_s - samples[0].at_s < length_s:  # a spread needs two slopes
        time.sleep(LOOK_S)
        samples.append(_now(agent))
    return samples


def _now(agent: int) -> MemorySample:
    process = Path(f"/proc/{agent}")
    (anonymous,) = re.findall(r"^Anonymous: +(\d+) kB$", (process / "smaps_rollup").read_text(), re.MULTILINE)
    user, system = (process / "stat").read_text().rpartition(") ")[2].split()[11:13]
    return MemorySample(time.monotonic(), int(anonymous) * 1024, (int(user) + int(system)) / _TICKS_PER_S)


def _sums_when_read(job: Path, made: int) -> Sums:
    """Wait until the agent has counted everything, and return its counters."""
    deadline = time.monotonic() + READ_S
    sums = _sums(job)
    while sums.operations + sums.records_lost < made and time.monotonic() < deadline:
        time.sleep(0.1)
        sums = _sums(job)
    if not sums.records_lost:
        require_equal(made, sums.operations, "operations were read")
    return sums


def _sums(job: Path) -> Sums:
    with urlopen(f"http://{ScrapeTarget(job).last_target()}/metrics", timeout=END_S) as answer:
        page = answer.read().decode()
    return Sums(
        sum_of(page, "torchdist_operations_total"),
        sum_of(page, "torchdist_records_lost_total"),
        sum_of(page, "torchdist_spans_dropped_total"),
    )


def _section(samples: list[MemorySample], spans: int, sums: Sums, receiver: Receiver, window: Window) -> Section:
    first, last = samples[0], samples[-1]
    seconds = last.at_s - first.at_s
    growth = _growth_per_hour(samples)
    most = max(look.private for look in samples)
    percent = (last.processor_s - first.processor_s) / seconds * 100
    return Section(
        key="agent_memory",
        title=f"The agent at {WORLD_SIZE} ranks with {CALLS_PER_SECOND:,} operations a second each",
        columns=["", f"after {window.warm_up_s:g} s", f"{seconds:.0f} s later", "at most", "growth per hour"],
        rows=[
            [
                "private memory, MB",
                *(f"{size / MB:.2f}" for size in (first.private, last.private, most)),
                f"{growth:.1f}",
            ],
        ],
        notes=[
            f"The agent as ranks start it, with the default budget of spans; it uses {percent:.0f} % of a core, and "
            f"exports {spans / seconds:,.0f} spans a second. {sums.records_lost:,} records were lost and "
            f"{sums.spans_dropped:,} spans dropped.",
            f"Growth: median of the slopes between any two samples ± half of the range between the quartiles, in MB, "
            f"extrapolated from {seconds:.0f} s. What is smaller than that range cannot be seen in so short a time; "
            "`python -m benchmarks.readers.agent_memory --minutes 10` takes longer.",
            receiver.note,
        ],
        goals=[],
        data={
            "unit": "bytes",
            **asdict(window),
            "ranks": WORLD_SIZE,
            "operations_per_second_and_rank": CALLS_PER_SECOND,
            "looks": [asdict(look) for look in samples],
            "growth_mb_per_hour": asdict(growth),
            "spans_per_second": spans / seconds,
            "processor_percent": percent,
            "receiver": receiver.name,
            **asdict(sums),
        },
    )


def _growth_per_hour(samples: list[MemorySample]) -> Spread:
    """Return the median of all slopes, in MB per hour. A step or a bump, such as a full queue, hardly affects it."""
    slopes = [
        (later.private - earlier.private) / (later.at_s - earlier.at_s) for earlier, later in combinations(samples, 2)
    ]
    return Spread.of([slope * HOUR_S / MB for slope in slopes])


def main() -> None:
    """Measure for the given time, and print the results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.readers.agent_memory", description=__doc__)
    parser.add_argument(
        "--minutes", type=float, default=10.0, help="duration of the measurement, after 20 s of warm-up (default: 10)"
    )
    minutes: float = parser.parse_args().minutes
    if minutes <= 0:
        parser.error(f"--minutes {minutes:g}: must be more than 0")
    show(measure(Window(USUAL.warm_up_s, minutes * 60)))


if __name__ == "__main__":
    main()
