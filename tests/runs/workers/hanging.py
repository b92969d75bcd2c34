"""Rank 1 leaves three steps behind and then loads a batch that never comes; rank 0 waits for it."""

import threading

import torch
import torch.distributed as dist


def load_batch() -> None:
    """Wait for a batch."""
    threading.Event().wait()  # never set


dist.init_process_group("gloo")
for _ in range(3):
    dist.all_reduce(torch.ones(4))
if dist.get_rank() == 1:
    load_batch()
dist.all_reduce(torch.ones(4))
