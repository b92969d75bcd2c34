"""One rank that compiles functions and is then switched on and off, if asked to: does Dynamo compile them again?"""

from __future__ import annotations

import sys
import warnings

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch._dynamo.utils import counters

from otel_torchdist.capture.tensors.choice import Observers
from otel_torchdist.capture.tensors.numerics import NumericsObserver
from otel_torchdist.config import NumericsMode
from tests.support.ranks.rank import join, say, start_capture


@torch.compile(backend="aot_eager", fullgraph=True)
def in_one_graph(x: torch.Tensor) -> torch.Tensor:
    """A functional collective, and one that Dynamo makes functional."""
    y = functional.all_reduce(x @ x, "sum", dist.group.WORLD) + 1
    dist.all_reduce(y)
    return y


@torch.compile(backend="aot_eager")
def in_two_graphs(x: torch.Tensor) -> torch.Tensor:
    """With a wait, at which the graph breaks."""
    y = x.clone()
    work = dist.all_reduce(y, async_op=True)
    assert work is not None
    z = x.sin()
    work.wait()
    return y + z


def run() -> None:
    """Run both; report what Dynamo has compiled so far, and how many frames it has seen."""
    for _ in range(2):
        in_one_graph(torch.eye(4))
        in_two_graphs(torch.eye(4))
    say(stats=dict(counters["stats"]), frames=dict(counters["frames"]), breaks=len(counters["graph_break"]))


warnings.simplefilter("ignore")
join()
run()
looking = Observers(numerics=NumericsObserver(NumericsMode.ALL, 1), compare_parameters=1)
observers = {"on": None, "looking": looking}
capture = start_capture(observers=observers[sys.argv[1]]) if sys.argv[1] in observers else None
run()
if capture is not None:
    capture.uninstall()
run()
