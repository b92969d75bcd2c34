"""A rank that hosts the store of two ranks, of which the other never comes; it tries twice, and then alone.

A program that is registered for a scheme of its own may know rank and size only later.
"""

from __future__ import annotations

import socket
from datetime import timedelta

import torch
import torch.distributed as dist

from tests.support.ranks.rank import own_tape, say, start_capture

SHORT = timedelta(milliseconds=300)


def free_port() -> int:
    """A port that nobody has."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return listening.getsockname()[1]


capture = start_capture()
tapes: list[str] = []
failures: list[str] = []
for _ in range(2):
    try:
        dist.init_process_group("gloo", f"tcp://127.0.0.1:{free_port()}", rank=0, world_size=2, timeout=SHORT)
    except Exception as error:
        failures.append(type(error).__name__)
    reader = own_tape(capture)
    tapes.append(str(reader.path))
    reader.close()
dist.init_process_group("gloo", f"tcp://127.0.0.1:{free_port()}", rank=0, world_size=1)
dist.all_reduce(torch.ones(1))
say(failures=failures, tapes=tapes)
dist.destroy_process_group()
