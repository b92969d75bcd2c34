"""Embeddings as TorchRec shards them: ragged exchanges, no two steps of the same size, beside a dense part in DDP."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.jobs.thirdparty.issued import counted, digest, exactly, report

STEPS = 40


class Exchange(torch.autograd.Function):
    """Rows for every rank, in numbers of each rank's own choosing; gradients are sent back."""

    @staticmethod
    def forward(context: object, rows: torch.Tensor, sent: list[int], received: list[int]) -> torch.Tensor:
        """Rows to their owners."""
        context.sizes = sent, received
        result = rows.new_empty(sum(received), *rows.shape[1:])
        dist.all_to_all_single(result, rows.contiguous(), received, sent)
        return result

    @staticmethod
    def backward(context: object, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        """Gradients to where the rows came from."""
        sent, received = context.sizes
        result = gradient.new_empty(sum(sent), *gradient.shape[1:])
        dist.all_to_all_single(result, gradient.contiguous(), sent, received)
        return result, None, None


def sizes_of(counts: list[int]) -> list[int]:
    """The number of rows that each other rank sends, once it has sent that."""
    received = torch.empty(len(counts), dtype=torch.int64)
    dist.all_to_all_single(received, torch.tensor(counts))
    return received.tolist()


def main() -> list[str]:
    """Train on bags of random length with random ids."""
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(4)
    dense = DistributedDataParallel(nn.Linear(4, 1))
    table = nn.Embedding(50, 4)
    optimizers = [torch.optim.SGD(table.parameters(), lr=0.1), torch.optim.Adam(dense.parameters(), lr=0.01)]
    generator = torch.Generator().manual_seed(100 + rank)
    losses: list[str] = []
    for step in range(STEPS):
        counts = [int(torch.randint(1, 9, (), generator=generator)) + step * 8 for _ in range(size)]
        ids = torch.randint(50, (sum(counts),), generator=generator)
        received = sizes_of(counts)
        wanted = torch.empty(sum(received), dtype=torch.int64)
        handle = dist.all_to_all_single(wanted, ids, received, counts, async_op=True)
        handle.wait()
        rows = Exchange.apply(table(wanted), received, counts)
        loss = dense(rows).square().mean()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        losses.append(exactly(loss))
    gathered: list[object] = [None] * size
    dist.all_gather_object(gathered, {"rank": rank, "losses": losses[rank:]})
    return [*losses, digest([*table.parameters(), *dense.parameters()])]


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    with counted() as issued:
        losses = main()
    report(issued, losses=losses, steps=STEPS)
    dist.destroy_process_group()
