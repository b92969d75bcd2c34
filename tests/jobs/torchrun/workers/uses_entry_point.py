"""Trains with backends that only entry points name, and prints what it has computed.

The argument is the folder in which the backend is installed, as if it were `site-packages`.
"""

import json
import sys

import torch
import torch.distributed as dist


def main() -> None:
    """Call each operation."""
    sys.path.append(sys.argv[1])
    dist.init_process_group("tiny")
    rank, tensor = dist.get_rank(), torch.tensor([float(dist.get_rank() + 1)])
    dist.all_reduce(tensor)
    work = dist.all_reduce(tensor, async_op=True)
    assert work is not None
    work.wait()
    dist.broadcast(tensor, 0)
    dist.barrier()
    for backend in ("gloo", "tiny_in_cpp", "tiny_group"):
        pair = dist.new_group([0, 1], backend=backend)
        dist.all_reduce(tensor, group=pair)
        dist.barrier(pair)
    print(json.dumps({"rank": rank, "value": float(tensor), "backend": dist.get_backend()}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
