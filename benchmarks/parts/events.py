"""Single events of a training other than operations, each as a function.

Every event is torch's code, called as a program calls it, with or without our patches.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from benchmarks.parts.orders import Event

BATCHES: Final = 4096


@dataclass(frozen=True, slots=True)
class Timed:
    """A timed event.

    Attributes:
        act: Triggers the event.
        prepare: Called before each event, untimed.
    """

    act: Callable[[], object]
    prepare: Callable[[], object] = lambda: None


def events(directory: Path) -> Mapping[Event, Timed]:
    """Return all events, for a process that is the only rank of its world; checkpoints are saved in `directory`."""
    warnings.simplefilter("ignore")  # torch warns of worlds of one rank
    weight = nn.Parameter(torch.ones(8))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    weight.grad = torch.ones(8)
    replicated = DistributedDataParallel(nn.Linear(8, 8))
    for _ in range(20):  # afterwards DDP has rebuilt its buckets
        replicated(torch.ones(2, 8)).sum().backward()
    unit = _unsharded_unit()
    batches = _Batches()
    saved = {"one": torch.ones(8)}
    return {
        Event.FORWARD: Timed(lambda: replicated._pre_forward(torch.ones(2, 8))),
        Event.UNIT: Timed(lambda: unit.unshard()),  # looked up each time, because we replace it
        Event.BACKWARD: Timed(lambda: (weight * 2).sum().backward()),
        Event.OPTIMIZER: Timed(lambda: optimizer.step()),
        Event.BATCH: Timed(lambda: next(batches.iterator), batches.rewind),
        Event.SAVE: Timed(lambda: save(copy.copy(saved), checkpoint_id=directory / "dcp", no_dist=True)),
        Event.FILE: Timed(lambda: torch.save(saved, directory / "file.pt")),
    }


class _Batches:
    """An endless sequence of batches from a loader."""

    def __init__(self) -> None:
        samples: Any = range(BATCHES)
        self._loader = DataLoader(samples, batch_size=None)
        self.iterator = iter(self._loader)
        self._left = BATCHES

    def rewind(self) -> None:
        """Restart the loader before it is exhausted."""
        self._left -= 1
        if self._left < 1:
            self.iterator, self._left = iter(self._loader), BATCHES - 1


def _unsharded_unit() -> FSDPParamGroup:
    """Return an FSDP2 unit with gathered parameters: its `unshard` does nothing, so the measured cost is ours."""
    net = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    mesh = init_device_mesh("cpu", (1,))
    for layer in net:
        fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)
    net(torch.ones(2, 8)).sum().backward()  # units get their names
    layer: Any = net[1]
    layer.unshard()
    state = layer._get_fsdp_state()
    groups = getattr(state, "_fsdp_param_groups", None)
    return groups[0] if groups else state._fsdp_param_group
