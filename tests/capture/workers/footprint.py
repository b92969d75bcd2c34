"""A rank that prints its modules and private memory: after its operations, and after saving a file."""

import gc
import io
import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore


def main() -> None:
    """Run operations, then save a file."""
    torch.set_num_threads(1)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=8)
    numbers = torch.ones(1 << 16)
    for nth in range(3_000):
        dist.all_reduce(numbers[: 16 << nth % 8])
    report = {"anonymous": anonymous_bytes(), "modules": sorted(sys.modules)}
    torch.save(numbers, io.BytesIO())
    print(json.dumps(report | {"after_a_file": sorted(sys.modules)}))


def anonymous_bytes() -> int:
    """Memory that belongs to no file and is not shared."""
    gc.collect()
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Anonymous:"))


main()
