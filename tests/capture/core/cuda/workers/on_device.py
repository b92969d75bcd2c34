"""Each kind of call on a simulated device, several times from one line. Reports what ran, and what Python recorded."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from otel_torchdist.capture.core.c10d.hot_path import HotPath
from tests.support.devices.simulated_cuda import MAIN_STREAM, SimulatedCuda
from tests.support.ranks.rank import own_tape, say, start_capture
from tests.support.waiting import until

TIMES = 6
MS = 1_000_000
warnings.simplefilter("ignore")
capture = start_capture()
dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
cuda = SimulatedCuda(capture, Path(sys.argv[1]))
cuda.device.use_stream(MAIN_STREAM)
ones, others, gathered = cuda.tensor(), cuda.tensor(1), cuda.tensor(elements=8)
in_python = 0
phases: dict[str, tuple[int, int]] = {}


def count(frame: FrameType, event: str, argument: object) -> None:
    """Count the calls that the kernel in Python gets."""
    global in_python
    in_python += event == "call" and frame.f_code is HotPath.enter.__code__


def synchronous() -> None:
    """Run on the caller's stream."""
    cuda.lasts_ns = 2 * MS
    for _ in range(TIMES):
        dist.all_reduce(ones)


def waited() -> None:
    """Run on the backend's stream, for which the caller's stream then waits."""
    cuda.lasts_ns = 20 * MS
    for _ in range(TIMES):
        work = dist.all_reduce(ones, async_op=True)
        assert work is not None
        work.wait()


def named_by_memory() -> None:
    """Run asynchronously, and wait as functional collectives do."""
    cuda.lasts_ns = 20 * MS
    for _ in range(TIMES):
        dist.all_reduce(ones, async_op=True)
        torch.ops._c10d_functional.wait_tensor(ones)


def never_waited() -> None:
    """Run asynchronously without a wait: only the watchdog reports the end."""
    cuda.lasts_ns = 2 * MS
    for _ in range(TIMES):
        dist.all_gather_into_tensor(gathered, ones, async_op=True)


def messages() -> None:
    """Point to point."""
    cuda.lasts_ns = 2 * MS
    for _ in range(TIMES):
        dist.isend(ones, 1)
        dist.irecv(ones, 1)


def on_other_device() -> None:
    """Run on the default stream of a device that is not current."""
    cuda.device.use_stream(0)
    cuda.lasts_ns = MS
    for _ in range(TIMES):
        dist.all_reduce(others)
    cuda.device.use_stream(MAIN_STREAM)


def refused() -> None:
    """The backend raises."""
    cuda.refuses = True
    for _ in range(TIMES):
        try:
            dist.all_reduce(ones)
        except RuntimeError:
            continue
    cuda.refuses = False


def in_graph() -> None:
    """While the stream is captured, when nothing may be recorded on it."""
    cuda.device.capturing.add(MAIN_STREAM)
    for _ in range(TIMES):
        dist.all_reduce(ones)
    cuda.device.capturing.clear()


def device_fails() -> None:
    """Every call of the device returns an error from now on."""
    cuda.device.failure = "cudaErrorLaunchFailure"
    for _ in range(TIMES):
        dist.all_reduce(ones)


def run(phase: Callable[[], None], is_followed: bool = True) -> None:
    """Run a phase, and wait until all of it is on the tape."""
    before, first = in_python, len(cuda.ran)
    sys.setprofile(count)
    phase()
    sys.setprofile(None)
    phases[phase.__name__] = (in_python - before, len(cuda.ran) - first)
    if is_followed:
        cuda.until_over()
        until(lambda: not tape.poll().entered and not tape.open_operations(), 20.0)


tape = own_tape(capture)
for phase in (synchronous, waited, named_by_memory, never_waited, messages, on_other_device, refused):
    run(phase)
run(in_graph, is_followed=False)
kernels = [(one.name, one.kernel.end_ns, one.kernel.lasts_ns) for one in cuda.ran]
run(device_fails, is_followed=False)
say(phases=phases, kernels=kernels)
cuda.close()
dist.destroy_process_group()
