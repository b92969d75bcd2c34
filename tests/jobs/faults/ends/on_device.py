"""Two ranks on simulated devices; rank 1 is killed while rank 0's device waits for it in an operation, as NCCL does."""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
from pathlib import Path

import torch.distributed as dist

from otel_torchdist.capture.session import Capture
from otel_torchdist.environment_variables import OTEL_PYTHON_TORCHDIST_TAPE_DIR
from tests.support.devices.simulated_cuda import MAIN_STREAM, SimulatedCuda

STEPS = 40
dist.init_process_group("gloo")
[capture] = [one for one in gc.get_objects() if isinstance(one, Capture)]
cuda = SimulatedCuda(capture, Path(sys.argv[1]))
cuda.device.use_stream(MAIN_STREAM)
cuda.lasts_ns = 1_000_000
tensor = cuda.tensor()
for _ in range(STEPS):
    work = dist.all_reduce(tensor, async_op=True)
    assert work is not None
    work.wait()
    dist.all_reduce(tensor)
cuda.until_over()
tapes = Path(os.environ[OTEL_PYTHON_TORCHDIST_TAPE_DIR])
while not list(tapes.glob("**/agent.checkpoint")):  # until the agent reads
    time.sleep(0.05)
dist.barrier()  # on the host: none is killed while the other still compiles
if dist.get_rank() == 1:
    os.kill(os.getpid(), signal.SIGKILL)
cuda.lasts_ns = 3600 * 1_000_000_000
dist.all_reduce(tensor)
time.sleep(3600)  # the host waits for its device
