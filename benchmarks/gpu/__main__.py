"""Command line: `python -m benchmarks.gpu [--limit SECONDS]`."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any, Final

import torch
import torch.distributed as dist

from benchmarks.gpu.checks import BACKENDS, LIMIT_S, checks, has_passed, run_all, tables

FAILED: Final = 1
NO_DEVICE: Final = 3
_EXIT_CODES: Final = (
    "Exit codes: 0 if all checks passed, 1 if one failed or was not run, 2 for wrong arguments, 3 without a CUDA "
    "device. The tables are printed in any case with a device, also after Ctrl-C or SIGTERM."
)


def main() -> int:
    """Run the checks and print their tables. Return the exit code."""
    description = "Check recording on a GPU: the time of calls, jobs of two ranks, tests/gpu."
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=description, epilog=_EXIT_CODES)
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="most seconds for all checks (%(default).0f)")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("no CUDA device: torch.cuda.is_available() is false, so nothing was run", file=sys.stderr)
        return NO_DEVICE
    cuda: Any = torch.cuda
    name, nccl = cuda.get_device_name(0), ".".join(map(str, cuda.nccl.version()))
    print(f"{torch.cuda.device_count()} x {name}, torch {torch.__version__}, NCCL {nccl}\n", flush=True)
    backends = available_backends(dist.Backend.backend_list)
    signal.signal(signal.SIGTERM, _interrupt)
    results: dict[str, dict[str, str]] = {}
    try:
        run_all(list(checks()), arguments.limit, backends, results)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
    print(tables(results, backends), flush=True)
    return 0 if all(has_passed(cell) for cells in results.values() for cell in cells.values()) else FAILED


def available_backends(known: Sequence[str]) -> tuple[str, ...]:
    """Return the backends to check, of the names that this torch knows. Before torch 2.15, `nccl` is the only one."""
    return tuple(name for name in BACKENDS if name in known) or ("nccl",)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
