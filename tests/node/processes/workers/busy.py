"""Two ranks, one with threads that are busy in Python beside collectives, until a file `stop` is in the directory.

While a file `hold` exists, native code holds that rank's GIL: it creates a file `held`, and waits for the pipe `go`.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from pathlib import Path

import torch
import torch.distributed as dist

from tests.node.processes.workers.forked import run_ranks
from tests.support.ranks.rank import join, rank, start_capture

THREADS = 3
directory = Path(sys.argv[1])
stopping = threading.Event()


def work() -> None:
    """Create and leave frames of every kind: calls, recursion, generators, exceptions, callbacks from C."""
    while not stopping.is_set():
        assert sum(walk(40)) == 820
        assert sorted(range(20), key=lambda n: -n)[0] == 19
        try:
            fall(20)
        except ValueError as error:
            assert error.args == (0,)


def walk(depth: int):
    """Nested generators, `depth` deep."""
    if depth:
        yield depth
        yield from walk(depth - 1)


def fall(depth: int) -> None:
    """Raise from nested frames."""
    if not depth:
        raise ValueError(depth)
    fall(depth - 1)


def hold() -> None:
    """Hold the GIL: one native call that acknowledges itself, and that a signal does not end."""
    command = f"echo > '{directory}/held'; read letter < '{directory}/go'"
    assert ctypes.PyDLL(None).system(command.encode()) == 0


def train() -> None:
    """What each rank does; the ranks agree on the end."""
    start_capture()
    join()
    sys.setswitchinterval(0.0002)  # threads switch often, and collectives get a turn
    threads = [threading.Thread(target=work) for _ in range(THREADS if rank() == 0 else 0)]
    for thread in threads:
        thread.start()
    going = True
    while going:
        if rank() == 0 and (directory / "hold").exists():
            hold()
        x = torch.tensor([1.0, float((directory / "stop").exists())])
        dist.all_reduce(x)
        assert x[0].item() == 2.0
        going = x[1].item() == 0.0
    stopping.set()
    for thread in threads:
        thread.join()
    dist.barrier()
    print(f"rank {rank()} is well", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    run_ranks(2, train)
