"""Command line: `python -m benchmarks.programs.long_run operations ... +operations`.

An uninstrumented user's script: it runs operations on the `fake` backend. At each of the given counts it prints the
anonymous memory of the process, and waits for a line. Each of the last operations has a new shape.
"""

from __future__ import annotations

import argparse
import gc
import sys
from itertools import cycle, pairwise
from pathlib import Path

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

WORLD_SIZE = 8
MAX_ELEMENTS = 1 << 16
FEW_SHAPES = tuple(2**power for power in range(4, 16))


def main() -> None:
    """Run operations, and report the memory."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.programs.long_run", description=__doc__)
    parser.add_argument("operations", type=int, nargs="+", help="ascending counts of operations")
    parser.add_argument(
        "new_shapes", type=int, metavar="+operations", help="number of last operations, each with a new shape"
    )
    given = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=WORLD_SIZE)
    numbers = torch.ones(MAX_ELEMENTS)
    sizes = cycle(FEW_SHAPES)
    for before, look in pairwise([0, *given.operations]):
        for _ in range(before, look):
            _communicate(numbers[: next(sizes)])
        _tell()
    for size in range(1, given.new_shapes + 1):
        _communicate(numbers[:size])
    _tell()


def _communicate(tensor: torch.Tensor) -> None:
    """Run one operation; its kind depends on the size."""
    kind = tensor.numel().bit_length() % 3
    if kind == 0:
        dist.all_reduce(tensor)
    elif kind == 1:
        dist.broadcast(tensor, 0)
    else:
        work = dist.all_reduce(tensor, async_op=True)
        assert work is not None
        work.wait()


def _tell() -> None:
    gc.collect()
    print(_anonymous_bytes(), flush=True)
    sys.stdin.readline()


def _anonymous_bytes() -> int:
    """Return the private memory without files; the mapped tape is not included."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    (found,) = [line for line in lines if line.startswith("Anonymous:")]
    return int(found.split()[1]) * 1024


if __name__ == "__main__":
    main()
