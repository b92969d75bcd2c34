"""Ranks with hooks. Each part reports the hook calls and the fate of the operations."""

from __future__ import annotations

import hashlib
import sys
import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from otel_torchdist import Hooks, OperationCall
from otel_torchdist.capture.core.c10d.completion import Works
from otel_torchdist.capture.session import Capture
from otel_torchdist.capture.tensors.choice import Observers
from tests.support.ranks.rank import join, part_of, rank, say, start_capture

seen: list[dict[str, Any]] = []
acts: dict[str, Callable[[OperationCall], object]] = {}


def note(when: str, call: OperationCall) -> None:
    """Write down a call."""
    tensors = call.inputs if when == "before" else call.outputs
    seen.append(
        {
            "when": when,
            "operation": call.operation,
            "group": call.group.description,
            "ranks": call.group.ranks,
            "sequence": call.sequence,
            "rank": call.rank,
            "peer": call.peer,
            "reduce_op": call.reduce_op,
            "function": call.call_site.function if call.call_site else None,
            "firsts": [float(tensor.flatten()[0]) for tensor in tensors],
        }
    )


def before(call: OperationCall) -> None:
    """Note it, and do what the part wants."""
    note("before", call)
    acts.get("before", lambda call: None)(call)


def after(call: OperationCall) -> None:
    """The same after an operation."""
    note("after", call)
    acts.get("after", lambda call: None)(call)


def every_route() -> None:
    """Calls that end in each of the ways."""
    tensor = torch.full((3,), rank() + 1.0)
    dist.all_reduce(tensor)
    dist.all_gather([torch.zeros(3), torch.zeros(3)], tensor)
    dist.all_reduce(tensor, async_op=True).wait()
    dist.broadcast(tensor, 1)
    if rank() == 0:
        dist.send(tensor, 1, tag=7)
    else:
        dist.recv(tensor, 0, tag=7)
    gathered = functional.all_reduce(torch.ones(2), "max", dist.group.WORLD)
    assert gathered.sum() == 2  # waits
    dist.barrier()


def changes() -> None:
    """Send inputs that a hook has changed."""

    def change(call: OperationCall) -> None:
        if call.rank == 1:
            call.inputs[0].fill_(40)

    acts["before"] = change
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    say(part="changed", values=tensor.tolist())


class OddValueError(Exception):
    """An exception of the program."""


def refuse(call: OperationCall) -> None:
    """A check that raises."""
    raise OddValueError(call.operation, call.sequence)


def raises() -> None:
    """Raise in hooks before and after operations."""
    tensor = torch.ones(3)
    found: list[Any] = []
    for when, call in (
        ("before", lambda: dist.all_reduce(tensor)),
        ("after", lambda: dist.all_reduce(tensor)),
        ("after", lambda: functional.all_reduce(tensor, "sum", dist.group.WORLD).sum()),
    ):
        acts.clear()
        acts[when] = refuse
        try:
            call()
        except OddValueError as error:
            found.append(error.args)
    acts.clear()
    dist.all_reduce(tensor)
    say(part="raised", found=found)


def nested() -> None:
    """A hook that communicates itself."""
    acts["before"] = lambda call: dist.all_reduce(torch.ones(5))
    dist.all_reduce(torch.ones(3))


def ddp() -> None:
    """C++ issues and waits; the outputs are given before the optimizer's step."""
    torch.manual_seed(rank())
    model = DistributedDataParallel(nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        seen.clear()
        model(torch.randn(2, 4)).sum().backward()
        before_step = len(seen)
        optimizer.step()
        say(part="ddp", before_step=before_step, reduced=seen[-1])
        optimizer.zero_grad()


def coalesced() -> None:
    """A block that ends with one wait."""
    tensors = [torch.ones(2), torch.ones(2)]
    with dist._coalescing_manager(async_ops=True) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor)
    manager.wait()


def over_at_once(capture: Capture) -> None:
    """Issue operations whose end the rank thread has or has not seen when the caller gets their Work."""
    ended = threading.Event()

    works = part_of(capture, Works)
    assert works is not None

    def sweep() -> None:
        while not ended.is_set():
            works.sweep(16)

    thread = threading.Thread(target=sweep)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    thread.start()
    for _ in range(500):
        dist.all_reduce(torch.ones(1), async_op=True).wait()
    ended.set()
    thread.join()
    sys.setswitchinterval(interval)
    say(part="over_at_once", ends=sum(one["when"] == "after" for one in seen))


def trained() -> str:
    """Return a hash of the result of a training with dropout."""
    torch.manual_seed(7)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 1)))
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).sum().backward()
        optimizer.step()
    values = b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())
    return hashlib.sha1(values + torch.get_rng_state().numpy().tobytes()).hexdigest()


def main() -> None:
    """Train bare, then with hooks, and then go through the parts."""
    join()
    bare = trained()
    filtered: list[str] = []
    hooks = (
        Hooks(before_operation=before, after_operation=after, groups=("default_pg",)),
        Hooks(before_operation=lambda call: filtered.append(call.operation), operations=("broadcast",), ranks=(1,)),
        Hooks(before_operation=lambda call: filtered.append("elsewhere"), groups=("mesh_*",)),
    )
    capture = start_capture(observers=Observers(hooks))
    say(part="trained", same=trained() == bare)
    filtered.clear()
    for part in (every_route, changes, raises, nested, coalesced, ddp):
        seen.clear()
        acts.clear()
        first = capture.current_recorder().tape.next_number()  # pyright: ignore[reportOptionalMemberAccess]
        part()
        end = capture.current_recorder().tape.next_number()  # pyright: ignore[reportOptionalMemberAccess]
        say(part=part.__name__, seen=seen, first=first, end=end, filtered=list(filtered))
        filtered.clear()
    seen.clear()
    acts.clear()
    over_at_once(capture)
    dist.barrier()
    capture.uninstall()
    seen.clear()
    dist.all_reduce(torch.ones(1))
    say(part="uninstalled", seen=seen)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
