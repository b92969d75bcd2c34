"""Measures the cost of value checks: of each statistic per MB, and per step of a model with 19 million parameters.

The figure is the processor time of the calling thread, on one thread for arithmetic: waits for other ranks would blur
it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final

import torch

from benchmarks.results.sections import Goal, Section
from benchmarks.results.spread import Spread
from otel_torchdist.capture.tensors.numerics import is_chosen
from otel_torchdist.capture.tensors.statistics import checksum_of, extremes_of, moments_of
from otel_torchdist.config import Config

MEGABYTE: Final = 1 << 20
DTYPES: Final = (torch.float32, torch.bfloat16, torch.float16)
BUCKETS_MB: Final = (25, 25, 22)
"""DDP's buckets for the gradients of 19 million parameters."""
STEP_MS: Final = 176.0
"""Duration of a step with a tiny batch, measured by `step_time`; with a larger batch the share is smaller."""
GOAL_SAMPLED_PERCENT: Final = 0.5
GOAL_ALL_PERCENT: Final = 3.0

NOTES: Final = (
    "Processor time of the calling thread for tensors on the CPU. Finite: the range, by which it is known whether all "
    "values are finite. Statistics: norm, mean, and shares in a sample. A sampled operation has all three, its "
    "outputs one checksum more.",
    "A step: the gradients of 19 million float32 parameters in three buckets, against a step of 176 ms with a tiny "
    "batch; larger batches make the share smaller. Off, nothing is called.",
)


@dataclass(frozen=True, slots=True)
class Extent:
    """The extent of the measurement.

    Attributes:
        megabytes: Size of a tensor.
        rounds: Rounds of each statistic.
    """

    megabytes: int
    rounds: int


USUAL: Final = Extent(megabytes=25, rounds=15)
QUICK: Final = Extent(megabytes=2, rounds=3)
_STATISTICS: Final[Mapping[str, Callable[[Sequence[torch.Tensor]], object]]] = {
    "finite": extremes_of,
    "statistics": moments_of,
    "checksum": checksum_of,
}


def measure(extent: Extent) -> Section:
    """Time the statistics of a tensor of each type."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        costs = {
            str(dtype).removeprefix("torch."): {
                name: _microseconds_per_megabyte(statistic, dtype, extent) for name, statistic in _STATISTICS.items()
            }
            for dtype in DTYPES
        }
    finally:
        torch.set_num_threads(threads)
    return _section(costs, extent)


def _microseconds_per_megabyte(
    statistic: Callable[[Sequence[torch.Tensor]], object], dtype: torch.dtype, extent: Extent
) -> Spread:
    tensor = torch.randn(extent.megabytes * MEGABYTE // dtype.itemsize).to(dtype)
    statistic([tensor])
    figures: list[float] = []
    for _ in range(extent.rounds):
        began = time.thread_time_ns()
        statistic([tensor])
        figures.append((time.thread_time_ns() - began) / 1e3 / extent.megabytes)
    return Spread.of(figures)


def _section(costs: Mapping[str, Mapping[str, Spread]], extent: Extent) -> Section:
    per_megabyte = {name: spread.median for name, spread in costs["float32"].items()}
    finite, sampled = per_megabyte["finite"], sum(per_megabyte.values()) + per_megabyte["checksum"]
    size = sum(BUCKETS_MB)
    shares = [_chosen_share(bucket) * bucket * sampled for bucket in BUCKETS_MB]
    percent = {
        "sampled": sum(shares) / 1e3 / STEP_MS * 100,
        "all": (sum(shares) + size * finite) / 1e3 / STEP_MS * 100,
    }
    goals = (
        Goal("share of such a step, sampled", percent["sampled"], GOAL_SAMPLED_PERCENT, "%"),
        Goal("share of such a step, all", percent["all"], GOAL_ALL_PERCENT, "%"),
    )
    rows = [[dtype, *(str(spread) for spread in of.values())] for dtype, of in costs.items()]
    rows += [[f"a step, {mode}", f"{share:.2f} %", "", ""] for mode, share in percent.items()]
    return Section(
        key="numerics",
        title=f"Looking at values: µs per MB of {extent.megabytes} MB",
        columns=("", "finite", "statistics", "checksum"),
        rows=rows,
        notes=NOTES,
        goals=goals,
        data={
            "megabytes": extent.megabytes,
            "rounds": extent.rounds,
            "us_per_megabyte": {dtype: {name: asdict(one) for name, one in of.items()} for dtype, of in costs.items()},
            "step_percent": percent,
        },
    )


def _chosen_share(megabytes: int) -> float:
    """Return the share of messages of this size that is sampled with the default setting."""
    every, count = Config().numerics_every, 1 << 16
    return sum(is_chosen(sequence, every, megabytes * MEGABYTE) for sequence in range(count)) / count
