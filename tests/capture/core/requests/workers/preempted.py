"""Rank 0 waits for rank 1 with handlers for signals that it never gets to run: `preempted.py READY`.

It has a wakeup descriptor of its own, whose bytes go to the file READY, and forks a child that signals itself, which
that descriptor gets too.
"""

import os
import signal
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist

from tests.support.ranks.rank import join, rank

ready = Path(sys.argv[1])
handled: list[int] = []
read, write = os.pipe()
os.set_blocking(write, False)


def copy() -> None:
    """Write down what the program's own descriptor gets."""
    while numbers := os.read(read, 64):
        with ready.open("ab") as stream:
            stream.write(numbers)


for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(number, lambda number, frame: handled.append(number))
signal.set_wakeup_fd(write)
threading.Thread(target=copy, daemon=True).start()
join()
dist.all_reduce(torch.ones(1))
if rank() == 0:
    child = os.fork()
    if not child:
        os.kill(os.getpid(), signal.SIGUSR1)
        time.sleep(0.2)
        os._exit(0)
    os.waitpid(child, 0)
    ready.touch()
    dist.all_reduce(torch.ones(1))
else:
    time.sleep(600)
