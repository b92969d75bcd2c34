"""One rank that compiles functions with collectives, with capture or without; it reports what Dynamo made of them."""

from __future__ import annotations

import re
import sys
import warnings
from typing import Any

import torch
import torch._dynamo
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch._dynamo.utils import counters

from tests.support.ranks.rank import join, say, start_capture


def with_function(x: torch.Tensor) -> torch.Tensor:
    """A functional collective between two products: one graph."""
    reduced = functional.all_reduce(x @ x, "sum", dist.group.WORLD)
    return (reduced @ x).relu()


def with_two(x: torch.Tensor) -> torch.Tensor:
    """Two at once; the second is waited for first."""
    first = functional.all_gather_tensor(x, 0, dist.group.WORLD)
    second = functional.reduce_scatter_tensor(x * 2, "sum", 0, dist.group.WORLD)
    return second + first


def with_plain(x: torch.Tensor) -> torch.Tensor:
    """`dist.all_reduce`, which Dynamo rewrites."""
    y = x + 1
    dist.all_reduce(y)
    return y * 2


def with_break(x: torch.Tensor) -> torch.Tensor:
    """An asynchronous one that is waited for: this breaks the graph."""
    y = x.clone()
    work = dist.all_reduce(y, async_op=True)
    z = x.sin()
    work.wait()
    return y + z


def with_backward(x: torch.Tensor) -> torch.Tensor:
    """A backward pass by the tensor's method, and one by the function."""
    weight = torch.ones(4, 4, requires_grad=True)
    (weight * x).sum().backward()
    torch.autograd.backward([(weight * x).sum()])
    assert weight.grad is not None
    return weight.grad + x


PLACE = re.compile(r" in file `[^`]*`|skip reason: .*")
"""Where a function is that Dynamo skips, and by which of its lists: `torch.autograd.backward` is ours."""


def explained(function: Any, x: torch.Tensor) -> list[Any]:
    """Graphs, breaks and operations according to Dynamo."""
    torch._dynamo.reset()
    explanation = torch._dynamo.explain(function)(x)
    reasons = [PLACE.sub("", reason.reason) for reason in explanation.break_reasons]
    return [explanation.graph_count, explanation.graph_break_count, explanation.op_count, reasons]


functions = (with_function, with_two, with_plain, with_break, with_backward)
if sys.argv[1] == "on":
    start_capture()
join()
x = torch.eye(4)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for function in functions:
        say(explained=explained(function, x))
        torch._dynamo.reset()
        counters.clear()
        compiled = torch.compile(function, backend="aot_eager")
        results = [compiled(x).tolist() for _ in range(3)]
        counted = {key: {PLACE.sub("", str(what)): n for what, n in counters[key].items()} for key in sorted(counters)}
        say(results=results, counters=counted)
    counters.clear()
    layer = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    torch.nn.init.ones_(layer.weight)
    compiled_layer = torch.compile(layer, backend="aot_eager")
    compiled_step = torch.compile(optimizer.step, backend="aot_eager")
    for _ in range(2):
        compiled_layer(x).sum().backward()
        compiled_step()
    # Dynamo leaves the frame that calls an optimizer's hooks as it is, with any hooks; the step itself is compiled.
    say(weight=layer.weight.tolist(), stats=dict(counters["stats"]), graphs=dict(counters["aot_autograd"]))

    def scaled() -> None:
        """A step that the scaler skips when gradients overflow."""
        scaler.scale(torch.ones(1))
        scaler.step(optimizer)
        scaler.update()

    counters.clear()
    scaler = torch.amp.GradScaler("cpu")
    compiled_scaled = torch.compile(scaled, backend="eager")
    for value in (torch.inf, 1.0):
        for parameter in layer.parameters():
            parameter.grad = torch.full_like(parameter, value)
        compiled_scaled()
    say(weight=layer.weight.tolist(), graphs=counters["stats"]["unique_graphs"], breaks=counters["graph_break"].total())
    whole = torch.compile(with_function, backend="aot_eager", fullgraph=True)(x)
    say(whole=whole.tolist())
texts = [str(warning.message) for warning in caught]
say(warnings=[text for text in texts if not text.startswith("Guards may run slower")])  # than on Python 3.13.1
