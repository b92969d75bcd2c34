"""Four ranks with FSDP in both generations, DDP, pipelines and meshes. Reports the expected labels of some calls."""

from __future__ import annotations

import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B
from torch.nn.parallel import DistributedDataParallel

from otel_torchdist import mark_step
from tests.support.ranks.rank import join, say, start_capture

warnings.filterwarnings("ignore")
STEPS = 3
MICROBATCHES = 4


class Block(nn.Module):
    """A layer with a unique size, by which the test identifies it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Linear(8, width)
        self.back = nn.Linear(width, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """There and back."""
        return self.back(torch.relu(self.inner(x)))


class Net(nn.Module):
    """Layers within layers, and parameters of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 8)
        self.layers = nn.ModuleList(Block(16 * (1 + place)) for place in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """All layers."""
        x = self.head(x)
        for layer in self.layers:
            x = layer(x)
        return x


def train(model: nn.Module) -> None:
    """Some steps."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        mark_step()


def sizes(root: nn.Module, units: dict[str, nn.Module]) -> dict[str, int]:
    """Return the number of elements of each unit, without nested units."""
    found = {}
    for name, unit in units.items():
        inner = {id(p) for other in units.values() if other is not unit and unit is root for p in other.parameters()}
        found[name] = sum(p.numel() for p in unit.parameters() if id(p) not in inner)
    return found


def fsdp2() -> None:
    """Units with explicit prefetching in both directions, within dimension `shard` of a mesh."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    net = Net()
    say(sizes=sizes(net, {"root": net, **{f"layers.{n}": layer for n, layer in enumerate(net.layers)}}))
    for layer in net.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)
    first, second, third = net.layers
    first.set_modules_to_forward_prefetch([second])
    second.set_modules_to_forward_prefetch([third])
    third.set_modules_to_backward_prefetch([second, first])
    train(net)


def fsdp1() -> None:
    """The older one, with flat parameters."""
    for original in (False, True):
        net = Net()
        wrapped = FullyShardedDataParallel(
            net, auto_wrap_policy=ModuleWrapPolicy({Block}), use_orig_params=original, device_id=torch.device("cpu")
        )
        train(wrapped)


def ddp() -> None:
    """Equal buckets, a sum over all ranks in each backward, and gradients that are accumulated."""
    net = nn.Sequential(*(nn.Linear(64, 64) for _ in range(6)))
    model = DistributedDataParallel(net, bucket_cap_mb=0.03)
    for step in range(4):
        loss = model(torch.ones(2, 64)).sum()
        loss.register_hook(lambda _: dist.all_reduce(torch.ones(2 * (64 * 64 + 64))))  # as large as a bucket
        if step == 3:
            with model.no_sync():
                model(torch.ones(2, 64)).sum().backward()
            loss = loss + model(torch.ones(2, 64)).sum()
        loss.backward()
        mark_step()
    known = model._get_ddp_logging_data()
    say(rebuilt=[int(size) for size in known["rebuilt_bucket_sizes"].split(",")])


def pipelines() -> None:
    """Three schedules of two stages or twice two, in pairs of ranks."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "pp"))
    place, group = mesh.get_local_rank("pp"), mesh.get_group("pp")
    for schedule in (ScheduleGPipe, Schedule1F1B, ScheduleInterleaved1F1B):
        stages = [
            PipelineStage(nn.Linear(8, 8), number, count, torch.device("cpu"), group=group)
            for count in [4 if schedule is ScheduleInterleaved1F1B else 2]
            for number in range(place, count, 2)
        ]
        runner = schedule(
            stages if schedule is ScheduleInterleaved1F1B else stages[0],
            n_microbatches=MICROBATCHES,
            loss_fn=nn.functional.mse_loss,
        )
        for _ in range(2):
            runner.step(torch.ones(8, 8)) if not place else runner.step(target=torch.zeros(8, 8), losses=[])
            mark_step()


def meshes() -> None:
    """Three dimensions of two ranks each or one, a flattened one, one as large as the world, and given groups."""
    cube = init_device_mesh("cpu", (2, 2, 1), mesh_dim_names=("dp", "fsdp", "tp"))
    flat = cube["dp", "fsdp"]._flatten("dp_fsdp")
    line = init_device_mesh("cpu", (4,), mesh_dim_names=("world",))
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    pair = pairs[dist.get_rank() // 2]
    given = DeviceMesh.from_group(pair, "cpu", mesh_dim_names=("given",))
    ranks = torch.tensor([[0, 1], [2, 3]])
    both = DeviceMesh.from_group([cube.get_group("dp"), pair], "cpu", ranks, mesh_dim_names=("outer", "inner"))
    for mesh in (cube["dp"], cube["fsdp"], cube["tp"], flat, line, given, both["outer"]):
        dist.all_reduce(torch.ones(3), group=mesh.get_group())


capture = start_capture(capacity=16_384)
join()
for part in (fsdp2, fsdp1, ddp, pipelines, meshes):
    dist.barrier()
    part()
capture.uninstall()
dist.destroy_process_group()
