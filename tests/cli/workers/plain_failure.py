"""A job that was not prepared: one rank raises, and the other one loses it."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record


@record
def main() -> None:
    """Raise in rank 1."""
    dist.init_process_group("gloo")
    values = torch.ones(4)
    dist.all_reduce(values)
    if dist.get_rank() == 1:
        raise ValueError("loss is nan")
    dist.all_reduce(values)


if __name__ == "__main__":
    main()
