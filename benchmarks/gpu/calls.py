"""Times calls on the host, in a world of one on NCCL. Prints the median of each kind in microseconds, as JSON.

The argument is the backend: `nccl2` or `nccl-legacy`. Recording is switched on by the environment.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.distributed import HashStore  # pyright: ignore[reportPrivateImportUsage]  # as torch's manual has it

from otel_torchdist.config import CaptureKernel
from otel_torchdist.environment_variables import OTEL_PYTHON_TORCHDIST_CAPTURE
from otel_torchdist.native.library import chosen_library

WARM_UP: Final = 300
ROUNDS: Final = 15
CALLS: Final = 200
"""Calls in a round. The device is awaited between rounds, so its queue never fills up."""
PACE_S: Final = 0.0007


def main() -> None:
    """Time each kind."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.calls", description="Time calls on a GPU.")
    parser.add_argument("backend", help="a backend of torch.distributed, such as nccl")
    backend = parser.parse_args().backend
    kernel = os.environ.get(OTEL_PYTHON_TORCHDIST_CAPTURE, "")
    if kernel == CaptureKernel.NATIVE and chosen_library(CaptureKernel.NATIVE) is None:
        sys.exit("there is no native library, so these would be the times of the Python kernel")
    torch.cuda.set_device(0)
    dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1)
    tensor, stream = torch.ones(4, device="cuda"), torch.cuda.Stream()

    def synchronous() -> None:
        dist.all_reduce(tensor)

    def asynchronous() -> None:
        work: Any = dist.all_reduce(tensor, async_op=True)
        work.wait()

    kinds: dict[str, tuple[Callable[[], None], torch.cuda.Stream | None]] = {
        "all_reduce": (synchronous, None),
        "all_reduce, async + wait": (asynchronous, None),
        "all_reduce on a stream": (synchronous, stream),
    }
    times: dict[str, float] = {}
    for pace, suffix in ((0.0, "in a row"), (PACE_S, "every 0.7 ms")):
        for name, (call, on_stream) in kinds.items():
            with torch.cuda.stream(on_stream) if on_stream is not None else contextlib.nullcontext():
                times[f"{name}, {suffix}"] = round(_time(call, pace), 1)
    print(json.dumps(times), flush=True)
    dist.destroy_process_group()


def _time(call: Callable[[], None], pace_s: float) -> float:
    """Return the median time of a call, in microseconds."""
    for _ in range(WARM_UP):
        call()
    rounds: list[float] = []
    for _ in range(ROUNDS):
        torch.cuda.synchronize()
        spent_ns = 0
        if pace_s:
            for _ in range(CALLS // 4):
                time.sleep(pace_s)
                began_ns = time.perf_counter_ns()
                call()
                spent_ns += time.perf_counter_ns() - began_ns
            rounds.append(spent_ns / (CALLS // 4) / 1e3)
        else:
            began_ns = time.perf_counter_ns()
            for _ in range(CALLS):
                call()
            rounds.append((time.perf_counter_ns() - began_ns) / CALLS / 1e3)
    return median(rounds)


if __name__ == "__main__":
    main()
