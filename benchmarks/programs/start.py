"""Measures the time added to the start and the end of a rank: the first and later `init_process_group`, and the exit.

Fresh processes run the same script, with cached bytecode as after an installation. The benchmark itself holds the lock
of the job's agent, so that ranks start no agent, which would use the processor meanwhile.
"""

from __future__ import annotations

import compileall
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks.results.sections import Goal, Section
from benchmarks.results.spread import Spread
from otel_torchdist import environment_variables as env
from otel_torchdist import guard
from otel_torchdist.model.kinds import TapeState
from otel_torchdist.node.job.directory import base_directory, job_directory, job_key, tapes_in
from otel_torchdist.node.job.tapes import ReaderLock
from otel_torchdist.tape.identity import identify
from otel_torchdist.tape.writer import TapeWriter

GOAL_FIRST_MS: Final = 50.0
GOAL_AGAIN_MS: Final = 3.0
ENDED_JOBS: Final = 200
RECORDS: Final = 512
_PACKAGE: Final = Path(guard.__file__).parent
_ADDRESS: Final = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", "LOCAL_WORLD_SIZE": "8"}

NOTES: Final = (
    "Backend `fake`, rank 0 of 8, Python kernel. Median of processes ± half of the range between the quartiles; of "
    "each process the median of its further groups. The time for which others had the processor is left out, except "
    "in that of the exit, which is over when the process is gone.",
    f"Beside ended jobs: {ENDED_JOBS} job directories of which nothing has been removed yet.",
)


@dataclass(frozen=True, slots=True)
class Extent:
    """The extent of the measurement.

    Attributes:
        rounds: Number of processes of each kind.
        inits: Number of groups that each process creates, one after the other.
    """

    rounds: int
    inits: int


USUAL: Final = Extent(rounds=11, inits=15)
QUICK: Final = Extent(rounds=2, inits=3)


class Way(Enum):
    """Variants of recording; the value is the name in the report."""

    OFF = "without us"
    ON = "added"
    BESIDE = "added beside ended jobs"


class Moment(Enum):
    """Timed phases; the value is the name in the report."""

    FIRST_INIT = "first `init_process_group`"
    FIRST_CALL = "first `all_reduce`"
    INIT = "each further `init_process_group`"
    CALL = "first `all_reduce` after it"
    DESTROY = "`destroy_process_group`"
    EXIT = "exit"


def measure(extent: Extent) -> Section:
    """Run processes, and time their start and end.

    Raises:
        RuntimeError: A process failed, or did not create a tape for each group.
    """
    compileall.compile_dir(_PACKAGE, quiet=2)
    times: dict[Way, list[Mapping[Moment, float]]] = {way: [] for way in Way}
    for _ in range(extent.rounds):
        for way in Way:
            times[way].append(_run(way, extent))
    return _section(times, extent)


def _run(way: Way, extent: Extent) -> Mapping[Moment, float]:
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="otel-torchdist-bench-", dir="/dev/shm"))
        environ = {name: value for name, value in os.environ.items() if name != "TORCH_DEVICE_BACKEND_AUTOLOAD"}
        environ |= _ADDRESS
        if way is Way.OFF:
            return _times_of(environ, extent)
        base = base_directory(Path(folder) / "tapes", on_disk=False)
        if way is Way.BESIDE:
            _leave_jobs(base)
        job = job_directory(base, job_key(environ))
        lock = ReaderLock(job)
        stack.callback(lock.resign)
        if not lock.is_won:
            raise RuntimeError("another process reads the job")
        found = _times_of(environ | _settings(base), extent)
        if len(tapes_in(job)) != extent.inits:
            raise RuntimeError(f"{len(tapes_in(job))} of {extent.inits} groups have a tape: the figures mean nothing")
        return found


def _settings(base: Path) -> dict[str, str]:
    return {
        env.OTEL_PYTHON_TORCHDIST_ENABLED: "true",
        env.OTEL_PYTHON_TORCHDIST_READER: "agent",
        env.OTEL_PYTHON_TORCHDIST_CAPTURE: "python",
        env.OTEL_PYTHON_TORCHDIST_TAPE_DIR: str(base),
    }


def _leave_jobs(base: Path) -> None:
    for number in range(ENDED_JOBS):
        writer = TapeWriter(job_directory(base, f"job-{number:016x}"), identify(0, 0, 1, RECORDS))
        writer.finish(TapeState.FINISHED)
        writer.close()


def _times_of(environ: Mapping[str, str], extent: Extent) -> Mapping[Moment, float]:
    """Run the script once; return the milliseconds of each phase."""
    command = [sys.executable, "-m", "benchmarks.programs.starting_rank", str(extent.inits)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=dict(environ), text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        began_s = time.monotonic()
        exit_code = process.wait()
        exit_ms = (time.monotonic() - began_s) * 1e3
    if exit_code or not line:
        raise RuntimeError(f"a process that begins and ends has ended with {exit_code}")
    first, *further = ([of / 1e6 for of in each] for each in json.loads(line))
    init, call, destroy = (median(each[place] for each in further) for place in range(3))
    return {
        Moment.FIRST_INIT: first[0],
        Moment.FIRST_CALL: first[1],
        Moment.INIT: init,
        Moment.CALL: call,
        Moment.DESTROY: destroy,
        Moment.EXIT: exit_ms,
    }


def _section(times: Mapping[Way, Sequence[Mapping[Moment, float]]], extent: Extent) -> Section:
    spreads = {moment: {way: _spread(times, way, moment) for way in Way} for moment in Moment}
    return Section(
        key="start",
        title="Beginning and ending in a rank, in ms",
        columns=["", *(way.value for way in Way)],
        rows=[[moment.value, *(f"{spread:.2f}" for spread in of.values())] for moment, of in spreads.items()],
        notes=NOTES,
        goals=[
            _goal("the first `init_process_group`", spreads[Moment.FIRST_INIT], GOAL_FIRST_MS),
            _goal("each further `init_process_group`", spreads[Moment.INIT], GOAL_AGAIN_MS),
        ],
        data={
            "unit": "ms",
            **asdict(extent),
            "moments": {
                moment.name.lower(): {way.name.lower(): [one[moment] for one in of] for way, of in times.items()}
                for moment in Moment
            },
        },
    )


def _spread(times: Mapping[Way, Sequence[Mapping[Moment, float]]], way: Way, moment: Moment) -> Spread:
    """Return the time without recording, or the time added by recording, relative to the median without recording."""
    if way is Way.OFF:
        return Spread.of([one[moment] for one in times[way]])
    usual = median(one[moment] for one in times[Way.OFF])
    return Spread.of([one[moment] - usual for one in times[way]])


def _goal(text: str, of: Mapping[Way, Spread], limit: float) -> Goal:
    return Goal(
        f"added to {text}, whatever others have left", max(of[Way.ON].median, of[Way.BESIDE].median), limit, "ms"
    )
