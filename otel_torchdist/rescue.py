"""Saving a rank's state in the middle of a stall, and finding it after the restart.

    from otel_torchdist import StalledRank, rescue

    shards = rescue.LocalShards(model, optimizer)        # once, when both are complete

    def save(stalled: StalledRank) -> int:               # OTEL_PYTHON_TORCHDIST_ON_STALL=rescue:__main__:save,abort
        copied = shards.copy()
        rescue.save(copied, stalled, DIRECTORY, step=copied["steps"])
        return copied["steps"]

    found = rescue.latest(DIRECTORY, rank, world_size)   # before training begins
    if found is not None:
        shards.load(torch.load(found))

Nothing here issues a collective: in a stall there would be no answer.
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import torch
from torch.distributed.tensor import DTensor

if TYPE_CHECKING:
    from otel_torchdist.capture.requests.rescue import StalledRank

MAX_AHEAD: Final = 64
"""Optimizer steps that a program may have enqueued on a device beyond the last one that has ended."""
_COUNTS_ON_DEVICE: Final = ("capturable", "fused")
"""Settings of optimizers that keep their counts of steps where the parameters are, so that no step waits for them."""
_STEP: Final = re.compile(r"step-(\d{1,18})")


class LocalShards:
    """What this rank has of a model and its optimizer: whole tensors, or its shards of them (FSDP2, other DTensors).

    It keeps the parameters as they are when it is made: while FSDP2 computes, a module has others in their place.
    """

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Keep both; each step of the optimizer is counted from now on.

        Args:
            model: The model, with its parameters on the devices and in the shards where they are trained.
            optimizer: Its optimizer.
        """
        self._tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        self._optimizer = optimizer
        self._steps = 0
        self._events: deque[torch.cuda.Event] = deque(maxlen=MAX_AHEAD)
        devices = {tensor.device for tensor in self._tensors.values() if tensor.device.type == "cuda"}
        # Made now: in a stall, CUDA may wait for the device before it makes one.
        self._streams = {device: torch.cuda.Stream(device) for device in devices}
        optimizer.register_step_post_hook(self._count)

    def _count(self, optimizer: torch.optim.Optimizer, args: object, kwargs: object) -> None:
        self._steps += 1
        if self._streams:
            event = torch.cuda.Event()
            event.record()
            self._events.append(event)

    @property
    def steps(self) -> int:
        """How many steps of the optimizer, since this was made or loaded, are in the parameters.

        On a device a program runs ahead: it may have enqueued steps that wait for the operation that hangs.
        """
        return self._steps - sum(not event.query() for event in tuple(self._events))

    def copy(self) -> dict[str, Any]:
        """Copy everything to the CPU; on a device by a stream of its own, which waits for nothing.

        Returns:
            `steps` as above, `tensors` by their names in the model, and of the optimizer `state`, by the position of
            the parameter, and `groups`. `torch.load` reads it without unpickling code.

        Raises:
            RuntimeError: Something changed meanwhile, so the copy may be of two steps.
        """
        with torch.no_grad():
            before = self._versions()
            copied = {
                "steps": before[0],
                "tensors": {name: self._on_cpu(tensor) for name, tensor in self._tensors.items()},
                "state": {
                    position: {key: self._on_cpu(value) for key, value in self._optimizer.state[parameter].items()}
                    for position, parameter in enumerate(self._parameters())
                    if parameter in self._optimizer.state
                },
                "groups": [
                    {key: self._on_cpu(value) for key, value in group.items() if key != "params"}
                    for group in self._optimizer.param_groups
                ],
            }
            if self._versions() != before:
                raise RuntimeError("the parameters changed while they were copied")
        return copied

    def load(self, copied: dict[str, Any]) -> None:
        """Put a copy back, into the same kind of model and optimizer, in a run with as many ranks.

        Args:
            copied: What `copy` has returned in the rank that had this rank's number.

        Raises:
            ValueError: It is of another model, or of another division into shards; nothing has been changed.
        """
        saved: dict[str, torch.Tensor] = copied["tensors"]
        shapes = {name: _local(tensor).shape for name, tensor in self._tensors.items()}
        wrong = {
            name for name in shapes.keys() | saved.keys() if name not in saved or saved[name].shape != shapes.get(name)
        }
        if wrong:
            raise ValueError(f"the copy is of another model, or of other shards: {', '.join(sorted(wrong)[:5])}")
        with torch.no_grad():
            for name, tensor in self._tensors.items():
                _local(tensor).copy_(saved[name])
            for group, one in zip(self._optimizer.param_groups, copied["groups"], strict=True):
                for key, value in one.items():
                    group[key] = _put_back(group.get(key), value)
            places = [(one, group) for group in self._optimizer.param_groups for one in group["params"]]
            states: dict[int, dict[str, Any]] = copied["state"]
            for position, state in states.items():
                parameter, group = places[position]
                on_device = any(group.get(name) for name in _COUNTS_ON_DEVICE)
                self._optimizer.state[parameter] = {
                    key: _like(parameter, value, on_device) for key, value in state.items()
                }
        self._steps = copied["steps"]
        self._events.clear()

    def _parameters(self) -> Iterator[torch.Tensor]:
        groups: list[dict[str, Any]] = self._optimizer.param_groups
        for group in groups:
            yield from group["params"]

    def _versions(self) -> tuple[int, ...]:
        """Count the steps and each tensor's changes in place."""
        state = [value for one in self._optimizer.state.values() for value in one.values()]
        tensors = [*self._tensors.values(), *filter(torch.is_tensor, state)]
        return (self.steps, *(_local(tensor)._version for tensor in tensors))

    def _on_cpu(self, value: Any) -> Any:
        if isinstance(value, tuple):  # betas, which may be tensors
            return tuple(map(self._on_cpu, cast("tuple[Any, ...]", value)))
        if not isinstance(value, torch.Tensor):
            return value
        local = _local(value)
        with torch.cuda.stream(self._streams.get(local.device)):  # no stream: nothing is changed
            return local.detach().to("cpu", copy=True)


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _put_back(present: Any, saved: Any) -> Any:
    """Put a saved setting of an optimizer in its place; tensors stay the same, for compiled code reads them."""
    if isinstance(present, torch.Tensor) and isinstance(saved, torch.Tensor) and present.shape == saved.shape:
        return present.copy_(saved)
    if isinstance(present, tuple) and isinstance(saved, tuple):  # betas
        return tuple(map(_put_back, cast("tuple[Any, ...]", present), cast("tuple[Any, ...]", saved)))
    return saved


def _like(parameter: torch.Tensor, value: Any, on_device: bool) -> Any:
    """Make of a saved value of an optimizer's state what it was: a shard, if it has the shape of the parameter's.

    Args:
        parameter: The parameter.
        value: The value, on the CPU.
        on_device: Whether numbers, such as the count of steps, are where the parameter is.
    """
    local = _local(parameter)
    if isinstance(value, torch.Tensor) and not value.ndim and on_device:
        return value.to(local.device)
    if not isinstance(value, torch.Tensor) or value.shape != local.shape or not value.ndim:
        return value
    value = value.to(local.device)
    if not isinstance(parameter, DTensor):
        return value
    return DTensor.from_local(
        value, parameter.device_mesh, parameter.placements, shape=parameter.shape, stride=parameter.stride()
    )


def save(state: object, stalled: StalledRank, directory: Path | str | None = None, *, step: int | None = None) -> Path:
    """Write what this rank saves, whole or not at all.

    Args:
        state: Anything that `torch.save` takes.
        stalled: What the rescue function was called with.
        directory: Where to; one that all ranks share, or `stalled.directory` on this node.
        step: The step that it is of; `stalled.step` if not given.

    Returns:
        The file: `step-<step>/rank-<rank>-of-<world size>.pt` in the directory.

    Raises:
        OSError: It cannot be written; what was written is named `.incomplete`.
    """
    folder = Path(directory or stalled.directory) / f"step-{stalled.step if step is None else step}"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / _name(stalled.rank, stalled.world_size)
    incomplete = path.with_name(f"{path.name}.incomplete")
    with open(incomplete, "wb") as stream:
        torch.save(state, stream)
        stream.flush()
        os.fsync(stream.fileno())
    return incomplete.replace(path)


def latest(directory: Path | str, rank: int, world_size: int) -> Path | None:
    """Find what this rank has saved at the newest step of which every rank's file is in the directory.

    Args:
        directory: A directory that all ranks share, or that all of them have the same files in.
        rank: This rank.
        world_size: Number of ranks; what a run with another number has saved is passed over.

    Returns:
        The file, or None if there is none.
    """
    steps = [(int(match[1]), folder) for folder in _folders(Path(directory)) if (match := _STEP.fullmatch(folder.name))]
    for _, folder in sorted(steps, reverse=True):
        if all((folder / _name(one, world_size)).exists() for one in range(world_size)):
            return folder / _name(rank, world_size)
    return None


def _folders(directory: Path) -> list[Path]:
    return list(directory.iterdir()) if directory.is_dir() else []


def _name(rank: int, world_size: int) -> str:
    return f"rank-{rank}-of-{world_size}.pt"
