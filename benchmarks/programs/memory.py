"""Measures the memory that recording adds to a rank, after many operations.

Fresh processes run the same script, some with recording turned on by an environment variable. So the memory of our
modules and of their imports is included.
"""

from __future__ import annotations

import compileall
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any, Final

from benchmarks.native_library import MISSING, native_cache
from benchmarks.results.recorded import operations_on_tapes, require_equal
from benchmarks.results.sections import Goal, Section
from otel_torchdist import environment_variables as env
from otel_torchdist import guard
from otel_torchdist.node.job.directory import job_directories

GOAL_SHARED_MB: Final = 4.0
GOAL_PRIVATE_MB: Final = 4.0
GOAL_GROWTH_MB: Final = 0.1
"""Maximum growth per million operations: memory must stay flat."""
MB: Final = 1e6
_PACKAGE: Final = Path(guard.__file__).parent

NOTE: Final = (
    "Backend `fake`, 8 ranks, one process that is not recorded and one for each kernel, all fresh. Private: anonymous "
    "memory; what is added includes the modules that we import. Shared: the tape and its dictionary of names. No "
    "reader."
)


@dataclass(frozen=True, slots=True)
class Extent:
    """The extent of the measurement.

    Attributes:
        counts: Numbers of operations, with few shapes, after which memory is measured.
        new_shapes: Number of operations after that, each with a new shape, before the last measurement.
    """

    counts: Sequence[int]
    new_shapes: int


USUAL: Final = Extent(counts=(100_000, 300_000, 1_000_000), new_shapes=20_000)
QUICK: Final = Extent(counts=(1_000, 2_000, 3_000), new_shapes=100)


class Switched(Enum):
    """Variants of recording; the value is the name in the report."""

    OFF = "off"
    PYTHON = "Python kernel"
    NATIVE = "native kernel"


@dataclass(frozen=True, slots=True)
class MemorySample:
    """The memory at one moment, in bytes.

    Attributes:
        operations: Number of operations so far.
        private: Private memory of each process.
        shared: Tape and dictionary of each recorded process.
    """

    operations: int
    private: Mapping[Switched, int]
    shared: Mapping[Switched, int]

    def added(self, kernel: Switched) -> int:
        """Return the private memory added by recording."""
        return self.private[kernel] - self.private[Switched.OFF]


def measure(extent: Extent) -> Section:
    """Let processes run the same operations, and measure their memory.

    Raises:
        RuntimeError: An operation was not recorded, or a process failed.
    """
    cache = native_cache()
    compileall.compile_dir(_PACKAGE, quiet=2)  # with cached bytecode, as installed: compiling modules would take memory
    switches = [switched for switched in Switched if cache is not None or switched is not Switched.NATIVE]
    kernels = switches[1:]
    with ExitStack() as stack:
        base = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="otel-torchdist-bench-", dir="/dev/shm")))
        tapes = {kernel: base / kernel.name.lower() for kernel in kernels}
        processes = {
            switched: stack.enter_context(_started(extent, _environment(switched, tapes.get(switched), cache)))
            for switched in switches
        }
        samples: list[MemorySample] = []
        for operations in [*extent.counts, extent.counts[-1] + extent.new_shapes]:
            private = {switched: _private(process) for switched, process in processes.items()}
            samples.append(MemorySample(operations, private, {kernel: _shared(tapes[kernel]) for kernel in kernels}))
            for kernel in kernels:
                require_equal([operations], _recorded(tapes[kernel]), f"operations were recorded by the {kernel.value}")
            for process in processes.values():
                _send_on(process)
    return _section(samples[:-1], samples[-1], kernels, extent)


def _environment(switched: Switched, tapes: Path | None, cache: Path | None) -> dict[str, str]:
    """Return this process's environment, with recording turned on if there is a directory for tapes."""
    environment = {name: value for name, value in os.environ.items() if name != "TORCH_DEVICE_BACKEND_AUTOLOAD"}
    environment["LOCAL_WORLD_SIZE"] = "8"  # set as by torchrun: no other node has ranks
    if tapes is None:
        return environment
    environment |= {
        env.OTEL_PYTHON_TORCHDIST_ENABLED: "true",
        env.OTEL_PYTHON_TORCHDIST_READER: "none",
        env.OTEL_PYTHON_TORCHDIST_CAPTURE: "native" if switched is Switched.NATIVE else "python",
        env.OTEL_PYTHON_TORCHDIST_TAPE_DIR: str(tapes),
    }
    return environment | ({"XDG_CACHE_HOME": str(cache)} if switched is Switched.NATIVE else {})


@contextmanager
def _started(extent: Extent, environment: Mapping[str, str]) -> Iterator[Popen[str]]:
    """Start a process that, at each measurement, prints its memory and waits for a line."""
    command = [sys.executable, "-m", "benchmarks.programs.long_run", *map(str, extent.counts), f"+{extent.new_shapes}"]
    with Popen(command, stdin=PIPE, stdout=PIPE, env=dict(environment), text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def _private(process: Popen[str]) -> int:
    """Return the next output of the process.

    Raises:
        RuntimeError: The process has ended.
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
    return [collectives for job in job_directories(tapes) for collectives in operations_on_tapes(job)]


def _shared(tapes: Path) -> int:
    """Return the memory of the job's files."""
    return sum(file.stat().st_blocks * 512 for job in job_directories(tapes) for file in job.iterdir())


def _section(
    samples: Sequence[MemorySample], full: MemorySample, kernels: Sequence[Switched], extent: Extent
) -> Section:
    growth = {kernel: _growth(samples, kernel) for kernel in kernels}
    rows = [["private, off", *(_mb(sample.private[Switched.OFF]) for sample in [*samples, full]), ""]]
    for kernel in kernels:
        added = [_mb(sample.added(kernel)) for sample in [*samples, full]]
        rows.append([f"private, added by the {kernel.value}", *added, f"{growth[kernel]:.2f}"])
    for kernel in kernels:
        rows.append([f"shared, {kernel.value}", *(_mb(sample.shared[kernel]) for sample in [*samples, full]), ""])
    return Section(
        key="memory",
        title="Memory of a rank, in MB, by number of operations",
        columns=["", *(f"{sample.operations:,}" for sample in samples), "all tables full", "growth per million"],
        rows=rows,
        notes=[
            NOTE,
            f"All tables full: after {extent.new_shapes:,} more, of which none has a shape that was there before.",
            *([MISSING] if Switched.NATIVE not in kernels else []),
        ],
        goals=[goal for kernel in kernels for goal in _goals(samples, full, kernel, growth[kernel])],
        data={
            "unit": "bytes",
            "looks": [_data(sample, kernels) for sample in samples],
            "after_new_shapes": _data(full, kernels),
            "growth_mb_per_million": {kernel.value: of for kernel, of in growth.items()},
        },
    )


def _growth(samples: Sequence[MemorySample], kernel: Switched) -> float:
    """Return the growth of the added memory from the first to the last look, in bytes per operation."""
    first, last = samples[0], samples[-1]
    return (last.added(kernel) - first.added(kernel)) / (last.operations - first.operations)


def _goals(samples: Sequence[MemorySample], full: MemorySample, kernel: Switched, growth: float) -> list[Goal]:
    of = f"memory of a rank, {kernel.value}"
    most = max(sample.added(kernel) for sample in samples)
    return [
        Goal(f"private {of}", most / MB, GOAL_PRIVATE_MB, "MB"),
        Goal(f"private {of}, every table full", full.added(kernel) / MB, GOAL_PRIVATE_MB, "MB"),
        Goal(f"growth of the private {of}, per million operations", growth, GOAL_GROWTH_MB, "MB"),
        Goal(f"shared {of}", full.shared[kernel] / MB, GOAL_SHARED_MB, "MB"),
    ]


def _mb(size: int) -> str:
    return f"{size / MB:.2f}"


def _data(sample: MemorySample, kernels: Sequence[Switched]) -> dict[str, Any]:
    return {
        "operations": sample.operations,
        "private": {switched.value: size for switched, size in sample.private.items()},
        "added": {kernel.value: sample.added(kernel) for kernel in kernels},
        "shared": {kernel.value: size for kernel, size in sample.shared.items()},
    }
