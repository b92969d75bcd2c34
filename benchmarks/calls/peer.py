"""The other rank of point-to-point operations on gloo: an uninstrumented process, forked first."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from benchmarks.calls.collectives import ELEMENTS, PEER


def fork_peer(store: Path) -> Callable[[], None]:
    """Start a process that echoes all messages until this process has ended.

    Args:
        store: File store of the two processes.

    Returns:
        A function that joins this process to the world of both; it returns when both have joined.
    """
    if os.fork() == 0:
        try:
            _answer(store)
        finally:
            os._exit(0)
    return lambda: _join(store, 0)


def _answer(store: Path) -> None:
    torch.set_num_threads(1)
    _join(store, PEER)
    tensor = torch.empty(ELEMENTS)
    while True:
        try:
            dist.recv(tensor, 0)
            dist.send(tensor, 0)
        except RuntimeError:  # the connection is closed
            return


def _join(store: Path, rank: int) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
