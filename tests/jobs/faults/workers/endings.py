"""A rank under torchrun: collectives without a pause, until one rank carries out its order or a signal ends it."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

folder = Path(sys.argv[1])
rank = int(os.environ["RANK"])
GOOD_STEPS = 20


def do(deed: str) -> None:
    """Carry out the order of this rank; it goes on if the deed returns."""
    if deed == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif deed == "gil":
        # Locked twice through PyDLL, which keeps the GIL; no signal ends that wait.
        mutex = ctypes.create_string_buffer(64)
        ctypes.PyDLL(None).pthread_mutex_lock(mutex)
        ctypes.PyDLL(None).pthread_mutex_lock(mutex)
    elif deed == "late":
        time.sleep(1000)
    elif deed == "raise":
        raise ValueError("the data is wrong")
    elif deed == "exit":
        os._exit(3)
    elif deed == "leave":
        os._exit(0)
    elif deed == "eat":
        eaten = []
        while True:
            eaten.append(bytearray(os.urandom(1 << 20)) * 8)


def main() -> None:
    """Run collectives in a loop."""
    dist.init_process_group("gloo")
    gradient = torch.ones(16)
    for _ in range(GOOD_STEPS):
        dist.all_reduce(gradient)
        gradient.fill_(1.0)
    (folder / f"{rank}.pid").write_text(f"{os.getpid()}\n")
    order = folder / f"{rank}.deed"
    while True:
        for _ in range(20):
            dist.all_reduce(gradient)
            gradient.fill_(1.0)
        if order.exists():
            do(order.read_text())


if __name__ == "__main__":
    main()
