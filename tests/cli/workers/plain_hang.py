"""A job that was not prepared: one rank never comes to the collective of the others."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist


def train(folder: Path) -> None:
    """Two collectives, the second of which hangs; a file in `folder` for each rank that has come through the first."""
    dist.init_process_group("gloo")
    values = torch.ones(4)
    dist.all_reduce(values)
    (folder / str(dist.get_rank())).touch()
    if dist.get_rank() == 1:
        load_data()
    dist.all_reduce(values)


def load_data() -> None:
    """Never return."""
    threading.Thread(target=time.sleep, args=(600,), name="prefetch", daemon=True).start()
    time.sleep(600)


if __name__ == "__main__":
    train(Path(sys.argv[1]))
