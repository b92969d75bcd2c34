"""Joins a job's workers of RPC, out of reach of everything else on the machine.

TensorPipe is as it always is between workers of one machine, but for its ports, on which anybody may call. What is no
worker ends the process there: the first bytes of `GET /metrics` are taken for a length, and a thread of TensorPipe
throws `std::bad_alloc`. Other tests' Prometheus calls at ports of agents that are gone.
"""

from __future__ import annotations

import os

from torch.distributed import rpc

from tests.support.ranks import rank as own


def join(worker: int, workers: int, threads: int = 16, timeout_s: float = 40.0) -> None:
    """Have this process be a worker, `worker<number>`.

    Args:
        worker: Its number.
        workers: How many there are.
        threads: That run what others call.
        timeout_s: Limit on each call; 0 for none.
    """
    options = rpc.TensorPipeRpcBackendOptions(
        num_worker_threads=threads,
        rpc_timeout=timeout_s,
        init_method=f"file://{os.environ[own.STORE]}",
        _transports=["shm"],
        _channels=["basic"],
    )
    rpc.init_rpc(f"worker{worker}", rank=worker, world_size=workers, rpc_backend_options=options)
