"""Measures the slowdown of a whole program of mostly small collectives: three ranks on two cores.

Command line: `python -m benchmarks.programs.small_collectives --rounds 9 --way "native kernel"`. The agent and its
receiver run on the same two cores, so that their processor time slows the ranks down.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from benchmarks.forks import forked
from benchmarks.native_library import MISSING, native_cache
from benchmarks.programs.small_collectives_turn import CORES, RANKS, Loop, Program, Way
from benchmarks.readers.agent_process import READ_S, AgentProcess, sum_of
from benchmarks.receivers.receivers import GRPC, Receiver, span_receiver
from benchmarks.results.recorded import operations_on_tapes, require_equal
from benchmarks.results.report import show
from benchmarks.results.sections import Goal, Section
from benchmarks.results.spread import Spread
from otel_torchdist import environment_variables as env
from otel_torchdist.node.job.directory import job_directories

GOAL_PERCENT: Final = 1.0
GOAL_EXPORTED_PERCENT: Final = 5.0
SCRAPE_S: Final = 1.0

NOTES: Final = (
    "A turn of the loop: all_gather_object and broadcast_object_list of an object of 1 to 2,047 bytes, all_reduce of "
    "one float; five collectives of gloo. The same ranks run it in every way, in turns, each time as a program of its "
    "own: process group, tape and agent are new. Longer: than without us in the same round; median ± half of the "
    "range between the quartiles. On the processor: processor time of a rank, with all its threads.",
    "without us, again: what is smaller than this cannot be distinguished from zero. Export and scrapes: all settings "
    f"as by default, over OTLP/gRPC, and /metrics is scraped every {SCRAPE_S:g} s; agent, receiver and scraper share "
    f"the {CORES} cores with the {RANKS} ranks. Timed after the agent's first export, which takes it half a second.",
)


@dataclass(frozen=True, slots=True)
class Extent:
    """The extent of the measurement.

    Attributes:
        rounds: Number of rounds, at least two; in each, every variant runs once.
        budget_s: Seconds after which no further round begins.
        warm_up: Turns before the timed turns: more collectives than in a step, so that spans are exported.
        turns: Number of timed turns.
        exported_turns: Timed turns with export: enough for many scrapes and exports, and a critical path.
    """

    rounds: int
    budget_s: float
    warm_up: int
    turns: int
    exported_turns: int


USUAL: Final = Extent(rounds=40, budget_s=420.0, warm_up=150, turns=250, exported_turns=2_500)
QUICK: Final = Extent(rounds=2, budget_s=10.0, warm_up=15, turns=20, exported_turns=20)


@dataclass(frozen=True, slots=True)
class Run:
    """The result of one run of the program.

    Attributes:
        wall_s: Wall time of the loop, on the slowest rank.
        processor_s: Processor time in the loop, mean over ranks.
        agent_s: Processor time of the agent meanwhile.
        operations: Number of collectives in the loop, on one rank.
        spans: Number of spans received when everything was read.
        lost: Number of records that were overwritten before the agent read them.
    """

    wall_s: float
    processor_s: float
    agent_s: float
    operations: int
    spans: int
    lost: int


def measure(extent: Extent, ways: Sequence[Way] = tuple(Way)) -> Section:
    """Run the program in every variant.

    Args:
        extent: The extent of the measurement.
        ways: The variants, including `WITHOUT` and `WITHOUT_AGAIN`; native variants are left out if the library cannot
            be built.

    Raises:
        RuntimeError: A collective was not recorded, or not read by the agent, or no span was exported.
    """
    library = native_cache()
    taken = [way for way in ways if library is not None or not way.is_native]
    runs: dict[Way, list[Run]] = {way: [] for way in taken}
    with ExitStack() as stack:
        cores = stack.enter_context(_on_few_cores())
        receiver = stack.enter_context(span_receiver())
        ranks = stack.enter_context(forked(_serve, [(rank, cores) for rank in range(RANKS)]))
        job = _Job(ranks, cores, receiver, library)
        deadline = time.monotonic() + extent.budget_s
        for nth in range(extent.rounds):
            if nth >= 2 and time.monotonic() > deadline:
                break
            first = nth % len(taken)
            for way in taken[first:] + taken[:first]:
                runs[way].append(job.run(way, extent))
    return _section(runs, extent, [receiver.note] if library is not None else [receiver.note, MISSING])


@contextmanager
def _on_few_cores() -> Iterator[set[int]]:
    """Bind this process and its children to two cores."""
    before = os.sched_getaffinity(0)
    cores = set(sorted(before)[:CORES])
    os.sched_setaffinity(0, cores)
    try:
        yield cores
    finally:
        os.sched_setaffinity(0, before)


def _serve(connection: Connection, rank: int, cores: set[int]) -> None:
    # Only the forked processes need torch, and the process that they are forked from has imported it.
    from benchmarks.programs.small_collectives_rank import serve

    serve(connection, rank, cores)


class _Job:
    """The ranks, and the receiver of their spans."""

    def __init__(self, ranks: Sequence[Connection], cores: set[int], receiver: Receiver, library: Path | None) -> None:
        self._ranks = ranks
        self._cores = cores
        self._receiver = receiver
        self._library = library

    def run(self, way: Way, extent: Extent) -> Run:
        """Run the program once."""
        with tempfile.TemporaryDirectory(prefix="otel-torchdist-bench-", dir="/dev/shm") as folder:
            tapes = Path(folder) / "tapes"
            settings = self._settings(way, tapes)
            turns = extent.exported_turns if way.is_exported else extent.turns
            received = self._receiver.received()
            self._ask([Program(Path(folder) / "store", settings, extent.warm_up, turns)] * RANKS)
            if not way.is_exported:
                loops: list[Loop] = self._ask([True] * RANKS)
                found = _run_of(loops, 0.0, 0, 0)
                _check_tapes(way, tapes, loops)
                self._ask([True] * RANKS)
                return found
            [job] = job_directories(tapes)
            agent = AgentProcess(job)
            agent.stay_on(self._cores)
            self._spans_since(received)  # the first export takes half a second longer
            found = self._run_exported(way, tapes, agent)
            self._ask([True] * RANKS)
            agent.end()
            return found

    def _run_exported(self, way: Way, tapes: Path, agent: AgentProcess) -> Run:
        before = self._receiver.received()
        with _scraped(agent) as processor_s:
            loops: list[Loop] = self._ask([True] * RANKS)
            used_s = processor_s()
        _check_tapes(way, tapes, loops)
        lost = _lost_when_read(agent, sum(loop.issued for loop in loops))
        return _run_of(loops, used_s, self._spans_since(before), lost)

    def _spans_since(self, before: int) -> int:
        """Wait for spans, and return the number received since `before`.

        Raises:
            RuntimeError: No span arrives.
        """
        deadline = time.monotonic() + READ_S
        while not (spans := self._receiver.received() - before):
            if time.monotonic() > deadline:
                raise RuntimeError("no span was exported: the figures mean nothing")
            time.sleep(0.05)
        return spans

    def _ask(self, orders: Sequence[Any]) -> list[Any]:
        for rank, order in zip(self._ranks, orders, strict=True):
            rank.send(order)
        return [rank.recv() for rank in self._ranks]

    def _settings(self, way: Way, tapes: Path) -> dict[str, str]:
        """Return settings as a user would choose them."""
        if not way.is_recorded:
            return {}
        settings = {
            env.OTEL_PYTHON_TORCHDIST_ENABLED: "true",
            env.OTEL_PYTHON_TORCHDIST_READER: "agent" if way.is_exported else "none",
            env.OTEL_PYTHON_TORCHDIST_CAPTURE: "native" if way.is_native else "python",
            env.OTEL_PYTHON_TORCHDIST_TAPE_DIR: str(tapes),
            env.OTEL_PYTHON_TORCHDIST_AGENT_LINGER: "0",
            env.OTEL_EXPORTER_PROMETHEUS_PORT: "0",
            "OTEL_EXPORTER_OTLP_ENDPOINT": self._receiver.endpoints[GRPC],
        }
        return settings | ({"XDG_CACHE_HOME": str(self._library)} if way.is_native else {})


@contextmanager
def _scraped(agent: AgentProcess) -> Iterator[Any]:
    """Scrape the agent regularly; yield a function that returns the agent's processor time since then."""
    is_over = threading.Event()

    def scrape() -> None:
        while not is_over.wait(SCRAPE_S):
            agent.scrape()

    agent.scrape()
    thread = threading.Thread(target=scrape)
    thread.start()
    before_s = agent.processor_s()
    try:
        yield lambda: agent.processor_s() - before_s
    finally:
        is_over.set()
        thread.join()


def _check_tapes(way: Way, tapes: Path, loops: Sequence[Loop]) -> None:
    expected = [loop.issued for loop in loops] if way.is_recorded else []
    found = [count for job in job_directories(tapes) for count in operations_on_tapes(job)]
    require_equal(expected, found, "collectives were recorded")


def _lost_when_read(agent: AgentProcess, issued: int) -> int:
    """Wait until the agent has seen all records, and return the number overwritten before it read them.

    Raises:
        RuntimeError: The agent has not seen all records.
    """
    deadline = time.monotonic() + READ_S
    while True:
        page = agent.scrape()
        lost = sum_of(page, "torchdist_records_lost_total")
        known = sum_of(page, "torchdist_operations_total") + lost
        if known >= issued or time.monotonic() > deadline:
            if not lost:
                require_equal(issued, known, "operations were read")
            return lost
        time.sleep(0.2)


def _run_of(loops: Sequence[Loop], agent_s: float, spans: int, lost: int) -> Run:
    wall_s, processor_s = max(loop.wall_s for loop in loops), fmean(loop.processor_s for loop in loops)
    return Run(wall_s, processor_s, agent_s, loops[0].operations, spans, lost)


def _section(runs: Mapping[Way, Sequence[Run]], extent: Extent, notes: Sequence[str]) -> Section:
    longer = {way: _longer(of, runs[Way.WITHOUT], "wall_s") for way, of in runs.items()}
    busier = {way: _longer(of, runs[Way.WITHOUT], "processor_s") for way, of in runs.items()}
    return Section(
        key="small_collectives",
        title=f"A program of small collectives (gloo, {RANKS} ranks on {CORES} cores)",
        columns=["", "µs a collective", "longer, %", "on the processor, %", "agent, µs a collective", "lost"],
        rows=[_row(way, of, longer[way], busier[way]) for way, of in runs.items()],
        notes=[*NOTES, *notes],
        goals=_goals(longer, len(runs[Way.WITHOUT])),
        data={
            **asdict(extent),
            "rounds_taken": len(runs[Way.WITHOUT]),
            "ways": {
                way.name.lower(): {
                    "longer_percent": asdict(longer[way]),
                    "processor_percent": asdict(busier[way]),
                    "runs": [asdict(run) for run in of],
                }
                for way, of in runs.items()
            },
        },
    )


def _longer(runs: Sequence[Run], without: Sequence[Run], which: str) -> Spread:
    """Return the percentage by which a collective takes longer than without recording in the same rounds."""

    def each(run: Run) -> float:
        return getattr(run, which) / run.operations

    return Spread.of([100 * (each(run) / each(bare) - 1) for run, bare in zip(runs, without, strict=True)])


def _row(way: Way, runs: Sequence[Run], longer: Spread, busier: Spread) -> list[str]:
    each = Spread.of([1e6 * run.wall_s / run.operations for run in runs])
    agent = Spread.of([1e6 * run.agent_s / (RANKS * run.operations) for run in runs])
    is_compared = way is not Way.WITHOUT
    return [
        way.value,
        f"{each:.0f}",
        f"{longer:.2f}" if is_compared else "",
        f"{busier:.2f}" if is_compared else "",
        f"{agent:.1f}" if way.is_exported else "",
        f"{sum(run.lost for run in runs):,}" if way.is_exported else "",
    ]


def _goals(longer: Mapping[Way, Spread], rounds: int) -> list[Goal]:
    """Return the goals of the native kernel, or of the Python kernel without a native library."""
    noise = longer[Way.WITHOUT_AGAIN]
    blur = max(abs(noise.median), noise.blur(rounds))
    native, python = (Way.NATIVE, Way.NATIVE_EXPORTED), (Way.PYTHON, Way.PYTHON_EXPORTED)
    return [
        Goal(f"{way.value}: longer by", longer[way].median, limit, "%", is_decided=blur <= limit)
        for way, limit in zip(
            native if native[0] in longer else python, (GOAL_PERCENT, GOAL_EXPORTED_PERCENT), strict=True
        )
        if way in longer
    ]


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.programs.small_collectives", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="run only a few turns, to check that the benchmark works")
    parser.add_argument("--rounds", type=int, metavar="N", help="number of rounds, at least two, without a time limit")
    parser.add_argument("--turns", type=int, metavar="N", help="number of timed turns of the loop")
    parser.add_argument("--way", action="append", choices=[way.value for way in Way], help="run only this variant")
    given = parser.parse_args()
    usual = QUICK if given.quick else USUAL
    rounds, turns = max(given.rounds or usual.rounds, 2), given.turns or usual.turns
    budget_s, exported_turns = 1e9 if given.rounds else usual.budget_s, given.turns or usual.exported_turns
    extent = Extent(rounds, budget_s, usual.warm_up, turns, exported_turns)
    only = [Way(value) for value in given.way or []]
    show(measure(extent, [way for way in Way if not only or way in only or not way.is_recorded]))


if __name__ == "__main__":
    main()
