"""Two ranks that stall in a unit of FSDP, then in a pipeline; the one that holds the other up says what is reported."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

from otel_torchdist.tape.reading.reader import TapeReader
from otel_torchdist.verdict.wording.sentence import sentence
from tests.support.ranks.rank import TAPES, join, own_tape, rank, say, start_capture
from tests.support.tapes.tape_watch import Lookout, tapes_of_all_ranks
from tests.support.waiting import until

warnings.filterwarnings("ignore")


def tapes() -> list[TapeReader]:
    """Readers of this rank's own tape and of the other rank's."""
    return tapes_of_all_ranks(own_tape(capture), 2, Path(os.environ[TAPES]))


def watch() -> None:
    """Stay here until the stall is reported; the other rank's tape is read, and this rank's own."""
    own, other = tapes()
    newest = own.poll().entered[-1].sequence
    until(lambda: other.poll() and any(one.sequence > newest for one in other.open_operations()))
    lookout = Lookout(tapes(), 0.3)  # not before the other rank waits for what comes next
    lookout.until(lambda: lookout.verdicts)
    say(sentence=sentence(lookout.verdicts[0].verdict, 1.0))


class Layer(nn.Linear):
    """A layer that stops the chosen rank at one of its calls."""

    def __init__(self, stopped: int, at: int) -> None:
        super().__init__(8, 8)
        self.stopped, self.left = stopped, at

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply."""
        self.left -= 1
        if self.left == 0 and rank() == self.stopped:
            watch()
        return super().forward(x)


capture = start_capture()
join()
mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
net = nn.Sequential(Layer(1, 2), nn.Linear(8, 8))
for layer in net:
    fully_shard(layer, mesh=mesh)
fully_shard(net, mesh=mesh)
for _ in range(2):
    net(torch.ones(1, 8)).sum().backward()
dist.barrier()
stage = PipelineStage(Layer(0, 4 + 3), rank(), 2, torch.device("cpu"))
schedule = ScheduleGPipe(stage, n_microbatches=4, loss_fn=nn.functional.mse_loss)
for _ in range(2):
    schedule.step(torch.ones(4, 8)) if not rank() else schedule.step(target=torch.zeros(4, 8), losses=[])
dist.destroy_process_group()
