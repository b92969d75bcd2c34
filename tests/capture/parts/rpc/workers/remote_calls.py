"""Three workers of RPC call each other in every way; argument `bare` records nothing, and worker 2 never does.

Worker 0 prints what it gets, tracebacks of errors included.
"""

from __future__ import annotations

import functools
import sys
import threading
import time
import traceback
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import rpc
from torch.futures import Future

from tests.support.ranks import rank as own
from tests.support.ranks import rpc_worker

rank = own.rank()


def add(a: Any, b: Any) -> Any:
    """Add."""
    return a + b


def fails(text: str) -> None:
    """Raise."""
    raise ValueError(text)


def within(to: str) -> Any:
    """Call another worker."""
    return rpc.rpc_sync(to, add, (1, 2))


def has_served() -> int:
    """Call worker 1 from a worker that is not recorded."""
    return rpc.rpc_sync("worker1", add, (3, 4))


@rpc.functions.async_execution
def later(to: str) -> Future[Any]:
    """Have another worker answer a little later."""
    return rpc.rpc_async(to, time.sleep, (1.0,)).then(lambda _: 7)


gate = threading.Event()


def wait_at_gate() -> None:
    """Answer when the gate is opened."""
    assert gate.wait(60)


def open_gate() -> None:
    """Let those who wait go on."""
    gate.set()


@rpc.functions.async_execution
def fails_later(to: str) -> Future[Any]:
    """The same, with an error."""
    failing = rpc.rpc_async(to, wait_at_gate).then(lambda _: fails("later"))
    # Only now: where the answer is there, `then` calls at once, and the error's text lists the stack of this thread.
    rpc.rpc_async(to, open_gate)
    return failing


@torch.jit.script
def doubled(tensor: torch.Tensor) -> torch.Tensor:
    """TorchScript."""
    return tensor * 2


class Table:
    """An object that lives on another worker."""

    def __init__(self, start: int) -> None:
        self.value = start

    def more(self, by: int) -> int:
        """Add to it."""
        self.value += by
        return self.value


def calls() -> None:
    """Make the calls."""
    own.say(sync=rpc.rpc_sync("worker1", add, (torch.ones(2), 1)).tolist())
    own.say(asynchronous=rpc.rpc_async("worker1", add, args=(1,), kwargs={"b": 2}).wait())
    own.say(by_id=rpc.rpc_sync(1, functools.partial(add, 1), (5,), timeout=0))
    own.say(builtin=rpc.rpc_sync("worker1", torch.add, (torch.ones(2), 1)).tolist())
    own.say(script=rpc.rpc_sync("worker1", doubled, (torch.ones(2),)).tolist())
    own.say(within=rpc.rpc_sync("worker1", within, ("worker0",)))
    own.say(later=rpc.rpc_sync("worker1", later, ("worker0",)))
    table = rpc.remote("worker1", Table, (3,))
    own.say(of_object=[table.rpc_sync().more(1), table.rpc_async().more(1).wait(), table.remote().more(1).to_here()])
    own.say(here=rpc.remote("worker0", add, (1, 2)).to_here())
    own.say(all=torch.futures.wait_all([rpc.rpc_async("worker1", add, (n, n)) for n in range(3)]))
    own.say(unrecorded=[rpc.rpc_sync("worker2", add, (1, 1)), rpc.rpc_sync("worker2", has_served)])
    for function, arguments in ((fails, ("now",)), (fails_later, ("worker0",)), (add, (1,)), (no_function, ())):
        try:
            rpc.rpc_sync("worker1", function, arguments)
        except Exception as error:
            own.say(error=type(error).__name__, text="".join(traceback.format_exception(error)))
    try:
        rpc.rpc_sync("worker9", add, (1, 1))
    except Exception as error:
        own.say(error=type(error).__name__, text="".join(traceback.format_exception(error)))


def no_function() -> None:
    """Worker 1 does not have it."""


def main() -> None:
    """Run the job."""
    capture = own.start_capture() if "bare" not in sys.argv and rank != 2 else None
    if rank == 1:
        del globals()["no_function"]
    rpc_worker.join(rank, own.world_size(), threads=4)
    if rank == 0:
        calls()
    own.join(suffix="-group")
    dist.all_reduce(torch.ones(2))
    dist.destroy_process_group()
    if rank == 0:
        for number in range(70):
            rpc.rpc_sync("worker1", add, (number, 0))
    rpc.shutdown()
    if capture is not None:
        assert capture.current_recorder() is None
        capture.uninstall()
    assert rpc.api._enable_rpc_profiler.__module__ == "torch.distributed.rpc.api"
    assert "deserialize" not in vars(rpc.internal._internal_rpc_pickler)


main()
