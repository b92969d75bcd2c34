"""The additional memory of a rank while it is recorded, after many operations.

Fresh processes run the same script, some of them switched on by an environment variable: the memory of our modules and
of what is imported with them is therefore included.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Final

from benchmarks.recorded import collectives_on_tapes, insist
from benchmarks.sections import Goal, Section
from otel_torchdist import environment_variables as env
from otel_torchdist.job.directory import job_directories

GOAL_SHARED_MB: Final = 4.0
GOAL_PRIVATE_MB: Final = 8.0
MB: Final = 1e6

NOTE: Final = (
    "Backend `fake`, 8 ranks, one process switched on and one not, both fresh. Private: anonymous memory; what is "
    "added includes the modules that we import. Shared: the tape and its dictionary of names. No reader."
)


@dataclass(frozen=True, slots=True)
class Extent:
    """How much is done.

    Attributes:
        looks: Operations, with few shapes, after which memory is measured.
        new_shapes: Operations after that, each with a shape of its own, before a last measurement.
    """

    looks: Sequence[int]
    new_shapes: int


USUAL: Final = Extent(looks=(100_000, 300_000, 1_000_000), new_shapes=20_000)
QUICK: Final = Extent(looks=(1_000, 2_000, 3_000), new_shapes=100)


@dataclass(frozen=True, slots=True)
class Look:
    """Memory in bytes at one moment.

    Attributes:
        operations: Operations so far.
        off: Private memory of the process without us.
        on: Private memory of the process with us.
        shared: Tape and dictionary of names.
    """

    operations: int
    off: int
    on: int
    shared: int

    @property
    def added(self) -> int:
        """Private memory that is ours."""
        return self.on - self.off


def measure(extent: Extent) -> Section:
    """Let two processes run the same operations, and measure what they have allocated.

    Raises:
        RuntimeError: An operation was not recorded, or a process failed.
    """
    numbers = [*extent.looks, extent.looks[-1] + extent.new_shapes]
    with ExitStack() as stack:
        tapes = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="otel-torchdist-bench-", dir="/dev/shm")))
        off = stack.enter_context(_started(extent, _environment(None)))
        on = stack.enter_context(_started(extent, _environment(tapes)))
        looks = []
        for operations in numbers:
            looks.append(Look(operations, _private(off), _private(on), _shared(tapes)))
            insist([operations], _recorded(tapes), "operations were recorded")
            _send_on(off)
            _send_on(on)
    return _section(looks[:-1], looks[-1], extent)


def _environment(tapes: Path | None) -> dict[str, str]:
    """This process's environment, with recording switched on if there is a directory for tapes."""
    environment = {name: value for name, value in os.environ.items() if name != "TORCH_DEVICE_BACKEND_AUTOLOAD"}
    if tapes is None:
        return environment
    return environment | {
        env.OTEL_PYTHON_TORCHDIST_ENABLED: "true",
        env.OTEL_PYTHON_TORCHDIST_READER: "none",
        env.OTEL_PYTHON_TORCHDIST_TAPE_DIR: str(tapes),
    }


@contextmanager
def _started(extent: Extent, environment: Mapping[str, str]) -> Iterator[Popen[str]]:
    """A process that reports its memory in a line at each measurement, and then waits for one."""
    command = [sys.executable, "-m", "benchmarks.long_run", *map(str, extent.looks), f"+{extent.new_shapes}"]
    with Popen(command, stdin=PIPE, stdout=PIPE, env=dict(environment), text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def _private(process: Popen[str]) -> int:
    """The next output of the process.

    Raises:
        RuntimeError: It has ended.
    """
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError("a process that should have reported its memory has ended")
    return int(line)


def _send_on(process: Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def _recorded(tapes: Path) -> list[int]:
    return [collectives for job in job_directories(tapes) for collectives in collectives_on_tapes(job)]


def _shared(tapes: Path) -> int:
    """The memory that the files of the job occupy."""
    return sum(file.stat().st_blocks * 512 for job in job_directories(tapes) for file in job.iterdir())


def _section(looks: Sequence[Look], worst: Look, extent: Extent) -> Section:
    first, last = looks[0], looks[-1]
    growth = (last.added - first.added) / (last.operations - first.operations)  # bytes each: MB for a million
    return Section(
        key="memory",
        title="Memory of a rank, in MB, after so many operations",
        columns=["", *(f"{look.operations:,}" for look in looks), "growth per million"],
        rows=[
            ["private, off", *(_mb(look.off) for look in looks), ""],
            ["private, on", *(_mb(look.on) for look in looks), ""],
            ["private, added", *(_mb(look.added) for look in looks), f"{growth:.2f}"],
            ["shared", *(_mb(look.shared) for look in looks), ""],
        ],
        notes=[
            NOTE,
            f"After {extent.new_shapes:,} more, of which none has a shape that was there before, every table of ours "
            f"has filled up: {_mb(worst.added)} MB private, {_mb(worst.shared)} MB shared.",
        ],
        goals=[
            Goal("shared memory of a rank", last.shared / MB, GOAL_SHARED_MB, "MB"),
            Goal("private memory of a rank", last.added / MB, GOAL_PRIVATE_MB, "MB"),
            Goal("private memory of a rank, every table full", worst.added / MB, GOAL_PRIVATE_MB, "MB"),
        ],
        data={
            "unit": "bytes",
            "looks": [_data(look) for look in looks],
            "after_new_shapes": _data(worst),
            "growth_per_operation": growth,
        },
    )


def _mb(size: int) -> str:
    return f"{size / MB:.2f}"


def _data(look: Look) -> dict[str, int]:
    return {**asdict(look), "added": look.added}
