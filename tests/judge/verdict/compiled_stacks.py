"""Print stacks of a program that compiles: per line a JSON list of the activity and its frames, innermost first.

The stacks are taken on the thread itself, by a timer's signal.
"""

from __future__ import annotations

import itertools
import json
import signal
import sys
import traceback
import warnings
from types import FrameType
from typing import Any

import torch
from torch.distributed.pipelining import SplitPoint, pipeline

from otel_torchdist.capture.core.requests.stacks import MAX_FRAMES

lines: list[tuple[str, Any]] = []


def take(doing: str, frame: FrameType | None = None) -> None:
    """Print the stack of this thread, as many frames as a rank writes."""
    frames = itertools.islice(traceback.walk_stack(frame or sys._getframe(1)), MAX_FRAMES)
    lines.append((doing, [(one.f_code.co_name, one.f_code.co_filename, line) for one, line in frames]))


@torch._dynamo.disable
def read_from_storage(x: torch.Tensor) -> torch.Tensor:
    """Run outside the graph, where a rank may hang in its own code."""
    take(state)
    return x


class Model(torch.nn.Module):
    """A model of two graphs with a break in between."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(3)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run it."""
        return self.layers(read_from_storage(self.layers(x)))


@torch.library.custom_op("otel_torchdist_test::read", mutates_args=())
def read(x: torch.Tensor) -> torch.Tensor:
    """Do the same, as a custom operation that can be exported."""
    take("pipeline")
    return x.clone()


@read.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


class Stages(torch.nn.Module):
    """A model that is split into two pipeline stages."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run it."""
        return self.second(read(self.first(x)))


state = "first call"
warnings.simplefilter("ignore")
model = torch.compile(Model(), backend="aot_eager")
signal.signal(signal.SIGALRM, lambda _, frame: take("compiling", frame))
signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
model(torch.ones(2, 4)).sum().backward()
signal.setitimer(signal.ITIMER_REAL, 0.0)
state = "steady"
for _call in range(2):
    model(torch.ones(2, 4)).sum().backward()
pipe = pipeline(Stages(), mb_args=(torch.ones(2, 4),), split_spec={"second": SplitPoint.BEGINNING})
for stage in range(2):
    pipe.get_stage_module(stage)(torch.ones(2, 4))
for line in lines:
    print(json.dumps(line))
