"""A rank under torchrun: collectives, 20 at a time, until one rank carries out its order or a signal ends it."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

folder = Path(sys.argv[1])
rank = int(os.environ["RANK"])
GOOD_STEPS = 20
PAUSE_S = float(os.environ.get("PAUSE_S", "0"))


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
    elif deed == "quit":
        sys.exit(3)
    elif deed == "ask":  # as a scheduler that takes the wrong process for the job
        os.kill(os.getpid(), signal.SIGTERM)
    elif deed == "eat":
        eaten = []
        while True:
            eaten.append(bytearray(os.urandom(1 << 20)) * 8)


def hold_memory() -> None:
    """Hold 2 GiB in the process's first file: the kernel frees it after the sockets, as drivers free their devices."""
    file = os.memfd_create("large")
    os.posix_fallocate(file, 0, 2 << 30)
    os.dup2(file, 0)
    os.close(file)


def main() -> None:
    """Run collectives in a loop."""
    if os.environ.get("SLOW_END") == str(rank):
        hold_memory()
    if "HANDLES_TERM" in os.environ:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    dist.init_process_group("gloo", timeout=timedelta(seconds=int(os.environ.get("TIMEOUT_S", "1800"))))
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
        time.sleep(PAUSE_S)
        if not order.exists():
            continue
        if order.read_text() == "return":  # as at the end of an epoch that has fewer batches here
            return
        do(order.read_text())


if __name__ == "__main__":
    try:
        main()
    except Exception as error:
        if "HANDLES_ERRORS" not in os.environ:
            raise
        sys.exit(f"the training has failed: {error}")  # with code 1, as frameworks for configuration do
