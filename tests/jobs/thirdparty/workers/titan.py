"""A training like torchtitan's: FSDP2 and tensor parallelism on a mesh, each block compiled."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

from tests.jobs.thirdparty.issued import counted, digest, exactly, report

STEPS = 4


class Block(nn.Module):
    """A feed-forward network with a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.up, self.down = nn.Linear(16, 32, bias=False), nn.Linear(32, 16, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalize, project up and down, and add the input."""
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Model(nn.Module):
    """Two blocks between an embedding and an output layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(32, 16)
        self.blocks = nn.ModuleDict({str(number): Block() for number in range(2)})
        self.norm = nn.LayerNorm(16)
        self.output = nn.Linear(16, 32, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Compute the logits."""
        x = self.embedding(tokens)
        for block in self.blocks.values():
            x = block(x)
        return self.output(self.norm(x))


def parallelize(model: Model, mesh: DeviceMesh) -> None:
    """Tensor parallelism with sharded sequences, then compilation, then FSDP."""
    parallelize_module(
        model,
        mesh["tp"],
        {
            "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
            "norm": SequenceParallel(),
            "output": ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False),
        },
    )
    plan = {
        "norm": SequenceParallel(),
        "up": ColwiseParallel(input_layouts=Shard(1)),
        "down": RowwiseParallel(output_layouts=Shard(1)),
    }
    for block in model.blocks.values():
        parallelize_module(block, mesh["tp"], plan)
        block.compile(backend="aot_eager", fullgraph=True)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.blocks.values():
        fully_shard(block, mesh=mesh["dp_shard"], mp_policy=policy)
    fully_shard(model, mesh=mesh["dp_shard"], mp_policy=policy)


def train(mesh: DeviceMesh) -> tuple[Model, list[str]]:
    """Some steps; losses are reduced over the data-parallel ranks, as torchtitan logs them."""
    torch.manual_seed(1)
    model = Model()
    parallelize(model, mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, foreach=True)
    generator = torch.Generator().manual_seed(mesh["dp_shard"].get_local_rank())
    losses: list[str] = []
    for _ in range(STEPS):
        tokens = torch.randint(32, (2, 8), generator=generator)
        with loss_parallel():
            logits = model(tokens)
            loss = nn.functional.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten())
            del logits
            loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        assert isinstance(norm, DTensor)
        local = loss.full_tensor() if isinstance(loss, DTensor) else loss
        mean = local.detach().clone()
        dist.all_reduce(mean, group=mesh["dp_shard"].get_group())
        losses += [exactly(mean), exactly(norm.full_tensor())]
    return model, losses


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    with counted() as issued:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp_shard", "tp"))
        model, losses = train(mesh)
    report(issued, losses=[*losses, digest(model.parameters())], steps=STEPS)
    dist.destroy_process_group()
