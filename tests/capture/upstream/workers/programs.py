"""Small programs that use each symbol of torch in the table, in one process: what a user's training does."""

from __future__ import annotations

import sys
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed import checkpoint, rpc
from torch.distributed._functional_collectives import all_reduce, wait_tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.run import main as torchrun
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader


def join() -> None:
    """Create the default group of a world of one."""
    store = tempfile.NamedTemporaryFile(delete=False).name  # noqa: SIM115  # torch removes it
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)


def groups() -> float:
    """Create groups of all kinds, and call operations of all kinds."""
    join()
    tensor = torch.ones(4)
    dist.all_reduce(tensor)
    work: Any = dist.all_reduce(tensor, async_op=True)
    work.get_future().wait()
    work.wait()
    group = dist.new_group([0], timeout=timedelta(minutes=3))
    dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=group)
    dist.distributed_c10d._set_pg_timeout(timedelta(minutes=4), group)
    with dist._coalescing_manager(group=group):  # pyright: ignore
        dist.all_reduce(tensor)
        dist.all_reduce(tensor)
    mesh = init_device_mesh("cpu", (1,), mesh_dim_names=("dp",))
    tensor += wait_tensor(all_reduce(tensor, "sum", mesh.get_group()))
    gathered: list[Any] = [None]
    dist.all_gather_object(gathered, {"a": 1})
    backend = dist.ProcessGroupGloo(dist.HashStore(), 0, 1, timedelta(minutes=1))
    backend.allreduce([tensor]).wait()
    weight = torch.ones(4, requires_grad=True)
    (weight * 2).sum().backward()
    dist.all_reduce(weight.grad)
    dist.barrier()
    dist.destroy_process_group()
    return float(tensor.sum() + weight.grad.sum())


def compiling() -> float:
    """Train a compiled model whose forward calls a collective."""
    join()
    weight = torch.ones(4, requires_grad=True)

    def loss_of(batch: torch.Tensor) -> torch.Tensor:
        return (weight * wait_tensor(all_reduce(batch, "sum", dist.group.WORLD))).sum()

    compiled: Any = torch.compile(loss_of, backend="eager")
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(2):
        compiled(torch.ones(4)).backward()
        optimizer.step()
    dist.destroy_process_group()
    return float(weight.sum())


def replicated() -> float:
    """Train in DDP, with a loader and a scaler, until there is a NaN."""
    torch.manual_seed(0)
    join()
    loss = _ddp()
    dist.destroy_process_group()
    return loss


def sharded() -> float:
    """Train in both kinds of FSDP, in a pipeline, and with replicated DTensors."""
    torch.manual_seed(0)
    join()
    loss = _sharded() + _sharded_flat() + _pipelined() + _compared_replicas()
    dist.destroy_process_group()
    return loss


def files() -> float:
    """Save and load checkpoints."""
    join()
    folder = Path(tempfile.mkdtemp())
    state = {"weight": torch.ones(4)}
    torch.save(state, folder / "plain.pt")
    checkpoint.save(state, checkpoint_id=folder / "distributed")
    dist.destroy_process_group()
    return float(torch.load(folder / "plain.pt")["weight"].sum())


def _ddp() -> float:
    model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    total = 0.0
    for batch in DataLoader(torch.ones(6, 4), batch_size=2):
        loss = model(batch).sum()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        total += float(loss)
    (model(torch.ones(1, 4)).sum() * float("nan")).backward()
    return total


def _sharded() -> float:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    for layer in model:
        fully_shard(layer, mesh=init_device_mesh("cpu", (1,)))
    model = fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        loss = model(torch.ones(2, 4)).sum()
        loss.backward()
        optimizer.step()
    (model(torch.ones(1, 4)).sum() * float("nan")).backward()
    return float(loss)


def _sharded_flat() -> float:
    model = FullyShardedDataParallel(nn.Linear(4, 1), device_id=torch.device("cpu"))
    loss = model(torch.ones(2, 4)).sum()
    loss.backward()
    return float(loss)


def _pipelined() -> float:
    stage = PipelineStage(nn.Linear(4, 1), 0, 1, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, n_microbatches=2, loss_fn=lambda output, target: (output - target).sum())
    output: Any = schedule.step(torch.ones(2, 4), target=torch.ones(2, 1))
    return float(output.sum())


def _compared_replicas() -> float:
    mesh = init_device_mesh("cpu", (1,), mesh_dim_names=("tp",))
    module: Any = dist.tensor.distribute_module(nn.Linear(4, 1), mesh)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for _ in range(2):
        module(dist.tensor.distribute_tensor(torch.ones(2, 4), mesh)).sum().to_local().backward()
        optimizer.step()
    return float(sum(parameter.to_local().sum() for parameter in module.parameters()))


def add(left: int, right: int) -> int:
    """Run remotely."""
    return left + right


@rpc.functions.async_execution
def add_later(left: int, right: int) -> Any:
    """Run remotely, with a result that comes later."""
    return rpc.rpc_async("alone", add, args=(left, right))


@torch.jit.script
def add_scripted(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Run remotely, without Python."""
    return left + right


def calls() -> float:
    """Call remotely in all ways."""
    rpc.init_rpc(
        "alone",
        rank=0,
        world_size=1,
        rpc_backend_options=rpc.TensorPipeRpcBackendOptions(init_method=f"file://{tempfile.mkdtemp()}/store"),
    )
    one = torch.ones(1)
    total = rpc.rpc_sync("alone", add, args=(1, 2)) + rpc.rpc_async("alone", add, args=(3, 4)).wait()
    total += rpc.remote("alone", add, args=(5, 6)).to_here() + rpc.rpc_sync("alone", add_later, args=(7, 8))
    total += float(rpc.rpc_sync("alone", torch.add, args=(one, one)))
    total += float(rpc.remote("alone", torch.add, args=(one, one)).to_here())
    total += float(rpc.rpc_sync("alone", add_scripted, args=(one, one)))
    total += float(rpc.remote("alone", add_scripted, args=(one, one)).to_here())
    rpc.shutdown()
    return total


def _fail(rank: int) -> None:
    sys.exit(7 + rank)


def launches() -> float:
    """Launch ranks that fail, with torchrun and with `start_processes`."""
    script = Path(tempfile.mkdtemp()) / "fails.py"
    script.write_text("import sys; sys.exit(3)\n")
    codes: list[int] = []
    try:
        torchrun(["--standalone", "--nproc-per-node=1", "--monitor-interval=0.05", str(script)])
    except dist.elastic.multiprocessing.errors.ChildFailedError as error:
        codes += [failure.exitcode for failure in error.failures.values()]
    try:
        mp.start_processes(_fail, nprocs=1, start_method="fork")
    except mp.ProcessExitedException as error:
        codes.append(error.exit_code)
    return float(sum(codes))


PROGRAMS = {
    "core": groups,
    "compiled": compiling,
    "ddp": replicated,
    "sharded": sharded,
    "files": files,
    "rpc": calls,
    "launch": launches,
}
