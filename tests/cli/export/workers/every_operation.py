"""Every operation that gloo has, without a fault, on four ranks.

With `any` there is also a receive from any rank, with `long` more than a short tape holds.
"""

import contextlib
import os
import sys
import warnings

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
warnings.simplefilter("ignore", FutureWarning)  # some of these have newer names
dist.init_process_group("gloo", init_method=os.environ["STORE"], rank=rank, world_size=size)


def parts(elements: int = 3) -> list[torch.Tensor]:
    """A tensor for each rank."""
    return [torch.ones(elements) for _ in range(size)]


three, matrix = torch.ones(3), torch.ones(2 * size, 3)
for _ in range(100 if "long" in sys.argv else 1):
    dist.all_reduce(matrix)
dist.all_reduce(torch.ones((), dtype=torch.bfloat16))
dist.broadcast(matrix.long(), 1)
dist.reduce(matrix, 2)
dist.all_gather(parts(), three)
dist.all_gather_into_tensor(torch.ones(2 * size * size, 3), matrix)
dist.reduce_scatter(three, parts())
dist.reduce_scatter_tensor(torch.ones(2, 3), matrix)
dist.gather(three, parts() if rank == 1 else None, dst=1)
dist.scatter(three, parts() if rank == 2 else None, src=2)
dist.all_to_all_single(torch.ones(2 * size), torch.ones(2 * size))
received = list(range(1, size + 1))
dist.all_to_all_single(torch.ones(sum(received)), torch.ones((rank + 1) * size), received, [rank + 1] * size)
with contextlib.suppress(RuntimeError):  # gloo has it since torch 2.9
    dist.all_to_all(parts(), parts())
dist.barrier()
dist.monitored_barrier()
dist.all_reduce_coalesced([torch.ones(2), torch.ones(3, 4)])
dist.all_gather_coalesced([[torch.empty(2), torch.empty(3)] for _ in range(size)], [torch.ones(2), torch.ones(3)])
dist.all_gather_object([None] * size, {"rank": rank})
for work in [dist.all_reduce(torch.ones(5), async_op=True) for _ in range(3)]:
    assert work is not None
    work.wait()
with dist._coalescing_manager(async_ops=True) as manager:
    dist.all_reduce(torch.ones(2))
    dist.all_reduce(torch.ones(3))
manager.wait()
for ranks in ([0, 1], [2, 3], [0, 1], [1, 2, 3]):
    group = dist.new_group(ranks)
    if rank in ranks:
        dist.all_reduce(three, group=group)
for _ in range(3):
    messages = [
        dist.P2POp(dist.isend, torch.ones(4), (rank + 1) % size),
        dist.P2POp(dist.irecv, torch.ones(4), (rank - 1) % size),
    ]
    for work in dist.batch_isend_irecv(messages if rank % 2 else messages[::-1]):
        work.wait()
if rank == 0:
    dist.send(torch.ones(3), 3, tag=5)
    dist.send(torch.ones(2), 3)
if rank == 3:
    dist.recv(torch.ones(3), 0, tag=5)
    dist.recv(torch.ones(2), 0)
if "any" in sys.argv:
    if rank == 0:
        dist.recv(torch.ones(2))
    if rank == 1:
        dist.send(torch.ones(2), 0)
dist.barrier()
dist.destroy_process_group()
