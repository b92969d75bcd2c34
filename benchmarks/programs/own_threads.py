"""Measures the processor time of our threads in a training process that communicates a thousand times a second.

It is an upper bound for the time for which they hold the GIL: a thread that only waits for the GIL uses no processor
time. The cost of calls on the caller's thread is not included.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from benchmarks.forks import forked
from benchmarks.programs.pace import OPERATIONS_PER_SECOND, Pace, ThreadTimes
from benchmarks.receivers.span_sink import SpanSink
from benchmarks.results.recorded import operations_on_tapes, require_equal
from benchmarks.results.sections import Goal, Section
from benchmarks.results.spread import Spread
from benchmarks.steps.training import RANKS, Place
from otel_torchdist import environment_variables as env
from otel_torchdist.node.job.directory import job_directories

GOAL_PERCENT: Final = 0.2
WATCH: Final = "otel-torchdist-watch"
READER: Final = "otel-torchdist-reader"
FLUSH_S: Final = 10.0
"""Longest time until sent spans are counted, in seconds."""

USUAL: Final = Pace(warm_up_s=2.0, windows=8, window_s=1.0)
QUICK: Final = Pace(warm_up_s=0.2, windows=2, window_s=0.2)

NOTES: Final = (
    "Two ranks on gloo, ten operations every 10 ms, five of them open until the next ten; `mark_step` every 100 ms. "
    "Median of windows of a second ± half of the range between the quartiles, of the rank whose threads use more.",
    "watch: capture's own thread, which beats and polls what is open. reader: reads tapes; one rank of a node, the "
    "first row of two, watches all tapes for stalls. export: OTLP/gRPC with its native threads, to a process on this "
    "machine, with the default budget of 1,000 spans a second and rank.",
)


class Home(Enum):
    """Processes that read the tapes; the value is the name in the report."""

    OUTSIDE = "reader outside of the process"
    INSIDE = "reader in a thread of the process"


@dataclass(frozen=True, slots=True)
class Share:
    """The processor time of our threads in one rank, in percent of a core.

    Attributes:
        all: All our threads.
        watch: The thread of capture.
        reader: The thread of the reader.
        export: The other threads.
    """

    all: Spread
    watch: Spread
    reader: Spread
    export: Spread

    @classmethod
    def of(cls, times: ThreadTimes) -> Share:
        """Sum the threads by purpose."""
        windows = len(next(iter(times.percent.values())))
        none = [0.0] * windows
        others = [of for name, of in times.percent.items() if name not in (WATCH, READER)]
        return cls(
            all=_sum(times.percent.values(), none),
            watch=_sum([times.percent.get(WATCH, none)], none),
            reader=_sum([times.percent.get(READER, none)], none),
            export=_sum(others, none),
        )


def measure(pace: Pace) -> Section:
    """Let two ranks communicate, with the reader in another process and in the rank.

    Raises:
        RuntimeError: A collective was not recorded, or no span was exported.
    """
    answers: dict[Home, list[ThreadTimes]] = {}
    spans = 0
    for home in Home:
        with SpanSink() as sink:
            answers[home] = _measure(home, sink.endpoint, pace)
            spans = _received(sink) if home is Home.INSIDE else 0
    return _section(answers, spans, pace)


def _measure(home: Home, endpoint: str, pace: Pace) -> list[ThreadTimes]:
    with tempfile.TemporaryDirectory(prefix="otel-torchdist-bench-", dir="/dev/shm") as directory:
        places = [Place(rank, Path(directory)) for rank in range(RANKS)]
        places[0].tapes.mkdir(mode=0o700)
        settings = _settings(home, endpoint, places[0].tapes)
        with forked(_serve, [(place, settings, pace) for place in places]) as ranks:
            answers = [rank.recv() for rank in ranks]
            (job,) = job_directories(places[0].tapes)
            require_equal([answer.issued for answer in answers], operations_on_tapes(job), "calls were recorded")
            for rank in ranks:
                rank.send(True)
            for rank in ranks:
                rank.recv()
    return answers


def _serve(connection: Connection, place: Place, settings: Mapping[str, str], pace: Pace) -> None:
    # Only the forked processes need torch, and the process that they are forked from has imported it.
    from benchmarks.programs.paced_rank import serve

    serve(connection, place, settings, pace)


def _settings(home: Home, endpoint: str, tapes: Path) -> dict[str, str]:
    """Return settings as a user would choose them."""
    return {
        env.OTEL_PYTHON_TORCHDIST_ENABLED: "true",
        env.OTEL_PYTHON_TORCHDIST_CAPTURE: "python",
        env.OTEL_PYTHON_TORCHDIST_READER: "none" if home is Home.OUTSIDE else "thread",
        env.OTEL_PYTHON_TORCHDIST_TAPE_DIR: str(tapes),
        env.OTEL_EXPORTER_PROMETHEUS_PORT: "0",
        "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
    }


def _received(sink: SpanSink) -> int:
    """Return the number of spans received, after the ranks have flushed.

    Raises:
        RuntimeError: No span arrived.
    """
    deadline = time.monotonic() + FLUSH_S
    while not (spans := sink.received()):
        if time.monotonic() > deadline:
            raise RuntimeError("no span was exported: the figures mean nothing")
    return spans


def _sum(threads: Iterable[Sequence[float]], none: Sequence[float]) -> Spread:
    return Spread.of([sum(window) for window in zip(none, *threads, strict=True)])


def _section(answers: Mapping[Home, Sequence[ThreadTimes]], spans: int, pace: Pace) -> Section:
    shares = {home: sorted(map(Share.of, of), key=lambda share: -share.all.median) for home, of in answers.items()}
    rows = {
        Home.OUTSIDE.value: shares[Home.OUTSIDE][0],
        f"{Home.INSIDE.value}, on the rank that watches for stalls": shares[Home.INSIDE][0],
        f"{Home.INSIDE.value}, on the other": shares[Home.INSIDE][1],
    }
    rate = spans / RANKS / (pace.warm_up_s + pace.windows * pace.window_s)
    return Section(
        key="own_threads",
        title=f"Processor time of our threads at {OPERATIONS_PER_SECOND:,} operations a second, % of a core",
        columns=["", "all", "watch", "reader", "export"],
        rows=[
            [name, *(f"{spread:.2f}" for spread in (share.all, share.watch, share.reader, share.export))]
            for name, share in rows.items()
        ],
        notes=[*NOTES, f"With the reader inside, each rank exported {rate:.0f} spans a second."],
        goals=[
            Goal("our threads, reader outside of the process", shares[Home.OUTSIDE][0].all.median, GOAL_PERCENT, "%")
        ],
        data={
            "unit": "% of a core",
            **asdict(pace),
            "operations_per_second": OPERATIONS_PER_SECOND,
            "spans_received": spans,
            "homes": {home.name.lower(): [_data(one) for one in of] for home, of in answers.items()},
        },
    )


def _data(times: ThreadTimes) -> dict[str, Any]:
    return {"operations": times.issued, "threads": times.percent, **asdict(Share.of(times))}
