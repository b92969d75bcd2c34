"""Small jobs of known parallelism, one after the other, each over all ranks; the arguments name them."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe, ScheduleInterleaved1F1B
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from otel_torchdist import mark_step
from otel_torchdist.capture.tensors.choice import Observers
from otel_torchdist.capture.tensors.numerics import NumericsObserver
from otel_torchdist.config import NumericsMode
from tests.support.ranks.rank import join, rank, start_capture, world_size

STEPS = 5
WIDTH = 32


class Block(nn.Module):
    """A layer as transformers have it: a norm and two matrices."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalize, project up and down."""
        return self.down(torch.relu(self.up(self.norm(x))))


def mesh_of(**sizes: int) -> DeviceMesh:
    """A mesh with these dimensions, the outermost first."""
    return init_device_mesh("cpu", tuple(sizes.values()), mesh_dim_names=tuple(sizes))


def train(model: nn.Module, shape: tuple[int, ...] = (4, WIDTH), more: Callable[[], None] | None = None) -> None:
    """Some steps; the loss is averaged over all ranks for the log."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        loss = model(torch.ones(shape)).square().sum()
        loss.backward()
        if more is not None:
            more()
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(torch.ones(()))
        mark_step()


def local_gradients(model: nn.Module) -> torch.Tensor:
    """This rank's part of all gradients, in one tensor."""
    grads = [parameter.grad for parameter in model.parameters()]
    return torch.cat([(grad.to_local() if isinstance(grad, DTensor) else grad).flatten() for grad in grads])


def ddp() -> None:
    """The model on each rank."""
    train(DistributedDataParallel(nn.Sequential(Block(), Block())))


def by_hand() -> None:
    """Each gradient reduced by a loop of the user's, whatever its shape."""
    model = nn.Sequential(Block(), Block())

    def reduce() -> None:
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)

    train(model, more=reduce)


def fsdp() -> None:
    """The model's parameters spread over all ranks."""
    model = nn.Sequential(Block(), Block())
    for block in model:
        fully_shard(block)
    train(fully_shard(model))


def hsdp() -> None:
    """Spread over pairs, which are replicas of each other."""
    mesh = mesh_of(replicate=world_size() // 2, shard=2)
    train(fully_shard(nn.Sequential(Block(), Block()), mesh=mesh))


def tensor() -> nn.Module:
    """A block that a plan for tensor parallelism fits."""
    return Block()


def fsdp_tp() -> None:
    """Layers divided by tensors within pairs, parameters spread over the pairs."""
    mesh = mesh_of(dp=world_size() // 2, tp=2)
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    train(fully_shard(parallelize_module(tensor(), mesh["tp"], plan), mesh=mesh["dp"]))


def ddp_sp() -> None:
    """Tensor parallelism with activations divided along the sequence, on replicas."""
    mesh = mesh_of(dp=world_size() // 2, tp=2)
    plan = {
        "norm": SequenceParallel(),
        "up": ColwiseParallel(input_layouts=Shard(1)),
        "down": RowwiseParallel(output_layouts=Shard(1)),
    }
    model = parallelize_module(tensor(), mesh["tp"], plan)
    group = mesh.get_group("dp")

    def reduce() -> None:
        dist.all_reduce(local_gradients(model), group=group)

    train(model, (4, 8, WIDTH), reduce)


def three_axes() -> None:
    """Tensors within pairs, replicas of these, and a pipeline of two stages."""
    mesh = mesh_of(pp=2, dp=world_size() // 4, tp=2)
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    model = parallelize_module(tensor(), mesh["tp"], plan)
    pp, dp = mesh.get_group("pp"), mesh.get_group("dp")
    stage = mesh.get_local_rank("pp")
    schedule = ScheduleGPipe(
        PipelineStage(model, stage, 2, torch.device("cpu"), group=pp), n_microbatches=2, loss_fn=nn.functional.mse_loss
    )
    inputs, target = torch.ones(4, WIDTH), torch.zeros(4, WIDTH)
    for _ in range(STEPS):
        schedule.step(inputs) if not stage else schedule.step(target=target, losses=[])
        dist.all_reduce(local_gradients(model), group=dp)
        mark_step()


def pipeline() -> None:
    """Stages of one pipeline over all ranks, in the default group."""
    model, stage = Block(), rank()
    schedule = ScheduleGPipe(
        PipelineStage(model, stage, world_size(), torch.device("cpu")), n_microbatches=4, loss_fn=nn.functional.mse_loss
    )
    for _ in range(STEPS):
        given = (torch.ones(8, WIDTH),) if not stage else ()
        is_last = stage == world_size() - 1
        schedule.step(*given, target=torch.zeros(8, WIDTH) if is_last else None, losses=[] if is_last else None)
        mark_step()


def interleaved() -> None:
    """Two stages on each rank."""
    stages = [
        PipelineStage(Block(), rank() + world_size() * turn, 2 * world_size(), torch.device("cpu")) for turn in range(2)
    ]
    schedule = ScheduleInterleaved1F1B(stages, n_microbatches=4, loss_fn=nn.functional.mse_loss)
    for _ in range(STEPS):
        given = (torch.ones(8, WIDTH),) if not rank() else ()
        is_last = rank() == world_size() - 1
        schedule.step(*given, target=torch.zeros(8, WIDTH) if is_last else None, losses=[] if is_last else None)
        mark_step()


def exchange(tokens: torch.Tensor, counts: list[int], group: dist.ProcessGroup) -> torch.Tensor:
    """Send each member of a group as many tokens as the router says; their numbers go first."""
    sent, received = torch.tensor(counts), torch.empty(len(counts), dtype=torch.int64)
    dist.all_to_all_single(received, sent, group=group)
    output = torch.empty(int(received.sum()), WIDTH)
    dist.all_to_all_single(output, tokens[: sum(counts)], received.tolist(), counts, group=group)
    return output


def expert() -> None:
    """Experts over pairs, which are replicas for all other layers."""
    mesh = mesh_of(dp=world_size() // 2, ep=2)
    ep = mesh.get_group("ep")
    steps = iter(range(STEPS))

    def route() -> None:
        nth = next(steps)
        for layer in range(2):
            tokens = exchange(torch.ones(64, WIDTH), [8 + 3 * nth + rank(), 9 + layer + 2 * nth], ep)
            exchange(tokens, [4 + nth, 5 + layer], ep)

    train(DistributedDataParallel(Block()), more=route)


def tokens_of(sender: int, receiver: int, nth: int) -> int:
    """How many of its 64 tokens a member of a pair sends to another."""
    first = 20 + 3 * nth + 5 * sender
    return first if receiver == 0 else 64 - first


def dispatched() -> None:
    """Experts over pairs; each rank always has as many tokens, and these come back through another line."""
    group = mesh_of(dp=world_size() // 2, ep=2).get_group("ep")
    here = dist.get_rank(group)
    steps = iter(range(STEPS))

    def route() -> None:
        nth = next(steps)
        outgoing, incoming = (
            [tokens_of(here, one, nth) for one in (0, 1)],
            [tokens_of(one, here, nth) for one in (0, 1)],
        )
        arrived, back = torch.empty(sum(incoming), WIDTH), torch.empty(64, WIDTH)
        for _ in range(2):
            dist.all_to_all_single(arrived, torch.ones(64, WIDTH), incoming, outgoing, group=group)
            dist.all_to_all_single(back, arrived, outgoing, incoming, group=group)

    train(DistributedDataParallel(Block()), more=route)


def heads_for_positions() -> Callable[[], None]:
    """The exchanges around attention in four layers, over pairs."""
    cp = mesh_of(dp=world_size() // 2, cp=2).get_group("cp")

    def attend() -> None:
        for _ in range(4):
            heads = torch.ones(2, 8, WIDTH)
            dist.all_to_all_single(torch.empty_like(heads), heads, group=cp)

    return attend


def ulysses() -> None:
    """Sequences divided over pairs; around attention, heads are exchanged for positions."""
    train(DistributedDataParallel(Block()), more=heads_for_positions())


def recommender() -> None:
    """As DLRM: embeddings divided over all ranks, dense layers replicated, all in the default group."""
    steps = iter(range(STEPS))

    def look_up() -> None:
        nth = next(steps)
        rows = torch.ones(16 * world_size() * (nth + 1), WIDTH)
        dist.all_to_all_single(torch.empty_like(rows), rows)

    train(DistributedDataParallel(nn.Sequential(Block(), Block())), more=look_up)


def ring() -> None:
    """Ring attention: keys and values go once round in each layer; replicas beside."""
    mesh = mesh_of(dp=world_size() // 4, cp=4)
    cp = mesh.get_group("cp")
    place = mesh.get_local_rank("cp")
    members = dist.get_process_group_ranks(cp)

    def attend() -> None:
        for _ in range(3):
            sent, received = torch.ones(4, WIDTH), torch.empty(4, WIDTH)
            to, origin = members[(place + 1) % 4], members[place - 1]
            works = dist.batch_isend_irecv(
                [dist.P2POp(dist.isend, sent, to, cp), dist.P2POp(dist.irecv, received, origin, cp)]
            )
            for work in works:
                work.wait()

    train(DistributedDataParallel(Block()), more=attend)


# The rules were fixed before the worlds that follow were made.


def hsdp_tp() -> None:
    """Layers divided within pairs, parameters spread over two pairs, and replicas of these four."""
    mesh = mesh_of(replicate=world_size() // 4, shard=2, tp=2)
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    train(fully_shard(parallelize_module(tensor(), mesh["tp"], plan), mesh=mesh["replicate", "shard"]))


def zero() -> None:
    """Gradients are reduced everywhere, and each rank keeps the optimizer's state of a part of the parameters."""
    model = DistributedDataParallel(nn.Sequential(Block(), Block()))
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.01)
    for _ in range(STEPS):
        model(torch.ones(4, WIDTH)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        mark_step()


def hooked() -> None:
    """Gradients of layers without biases, each averaged by a hook as soon as it is there."""

    def average(parameter: torch.Tensor) -> None:
        dist.all_reduce(parameter.grad)
        parameter.grad /= world_size()  # their sum makes the training diverge now and then

    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3)))
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(average)
    train(model)


class Gathered(torch.autograd.Function):
    """A parameter from its shards; the gradient goes back to these."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, shard: torch.Tensor) -> torch.Tensor:
        """Gather."""
        whole = torch.empty(shard.shape[0] * world_size(), *shard.shape[1:])
        dist.all_gather_into_tensor(whole, shard)
        return whole

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *gradients: torch.Tensor) -> torch.Tensor:
        """Scatter."""
        shard = torch.empty(gradients[0].shape[0] // world_size(), *gradients[0].shape[1:])
        dist.reduce_scatter_tensor(shard, gradients[0].contiguous())
        return shard


class Sharded(nn.Module):
    """A matrix of which each rank has some rows."""

    def __init__(self) -> None:
        super().__init__()
        self.shard = nn.Parameter(torch.ones(WIDTH // world_size(), WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply by the whole."""
        return x @ Gathered.apply(self.shard)


def one_by_one() -> None:
    """The model sharded as by SimpleFSDP: each parameter is gathered in its own shape, when it is needed."""
    train(nn.Sequential(Sharded(), nn.ReLU(), Sharded()))


def first_fsdp() -> None:
    """FSDP of the first generation, each block in a unit of its own."""
    policy = ModuleWrapPolicy({Block})
    model = FullyShardedDataParallel(
        nn.Sequential(Block(), Block()), auto_wrap_policy=policy, device_id=torch.device("cpu")
    )
    train(model)


def fsdp_ulysses() -> None:
    """Parameters spread over all ranks, sequences divided over pairs."""
    train(fully_shard(Block()), more=heads_for_positions())


def expert_pipeline() -> None:
    """Experts over pairs within each of two stages, and replicas of the other layers over the same pairs."""
    mesh = mesh_of(pp=2, ep=world_size() // 2)
    pp, ep = mesh.get_group("pp"), mesh.get_group("ep")
    members, stage = dist.get_process_group_ranks(pp), mesh.get_local_rank("pp")
    model = Block()
    for step in range(STEPS):
        x = torch.ones(4, WIDTH)
        if stage:
            dist.recv(x, members[0], group=pp)
        size = world_size() // 2
        exchange(torch.ones(64, WIDTH), [5 + step + (rank() + place) % 3 for place in range(size)], ep)
        y = model(x.requires_grad_())
        if not stage:
            dist.send(y.detach(), members[1], group=pp)
            gradient = torch.empty_like(y)
            dist.recv(gradient, members[1], group=pp)
            y.backward(gradient)
        else:
            y.sum().backward()
            dist.send(x.grad, members[0], group=pp)
        dist.all_reduce(local_gradients(model), group=ep)
        mark_step()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.use_deterministic_algorithms(True, warn_only=True)  # uninitialized memory is full of NaN
    start_capture(observers=Observers(numerics=NumericsObserver(NumericsMode.ALL, 1), compare_parameters=1))
    for world in sys.argv[1:]:
        join(suffix=world)
        torch.manual_seed(0)  # from other parameters, one in a thousand of these trainings diverges to infinity
        globals()[world]()
        dist.barrier()
        dist.destroy_process_group()
