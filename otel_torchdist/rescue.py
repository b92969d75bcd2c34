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
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import torch
from torch.distributed.tensor import DTensor

if TYPE_CHECKING:
    from otel_torchdist.capture.parts.rescue import StalledRank

MAX_AHEAD: Final = 64
"""Optimizer steps that a program may have enqueued on a device beyond the last one that has ended."""
_COUNTS_ON_DEVICE: Final = ("capturable", "fused")
"""Settings of optimizers that keep their counts of steps where the parameters are, so that no step waits for them."""
_STEP: Final = re.compile(r"step-(\d{1,18})")


@dataclass(frozen=True, slots=True)
class _Number:
    """What is in a tensor without dimensions."""

    value: float
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class _OnHost:
    """What an optimizer keeps on the host for parameters on a device, such as counts of steps and learning rates.

    Attributes:
        state: Such values of each parameter that has a state, by its position.
        groups: Those of each group of parameters.
    """

    state: dict[int, dict[str, Any]]
    groups: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class _Enqueued:
    """A step of the optimizer that has been enqueued on a device.

    Attributes:
        ended: Recorded behind it.
        before: What was on the host before it.
    """

    ended: torch.cuda.Event
    before: _OnHost


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
        self._ahead: deque[_Enqueued] = deque(maxlen=MAX_AHEAD)
        devices = {tensor.device for tensor in self._tensors.values() if tensor.device.type == "cuda"}
        # Made now: in a stall, CUDA may wait for the device before it makes one.
        self._streams = {device: torch.cuda.Stream(device) for device in devices}
        self._on_host = _OnHost({}, [])
        optimizer.register_step_pre_hook(self._note)
        optimizer.register_step_post_hook(self._count)

    def _note(self, optimizer: torch.optim.Optimizer, args: object, kwargs: object) -> None:
        if self._streams:
            self._on_host = self._read_on_host()

    def _count(self, optimizer: torch.optim.Optimizer, args: object, kwargs: object) -> None:
        self._steps += 1
        if self._streams and not torch.cuda.is_current_stream_capturing():
            while self._ahead and self._ahead[0].ended.query():
                self._ahead.popleft()
            event = torch.cuda.Event()
            event.record()
            self._ahead.append(_Enqueued(event, self._on_host))

    @property
    def steps(self) -> int:
        """How many steps of the optimizer, since this was made or loaded, are in the parameters.

        On a device a program runs ahead: it may have enqueued steps that wait for the operation that hangs.
        """
        return self._steps - len(self._not_ended())

    def _not_ended(self) -> list[_Enqueued]:
        return [step for step in tuple(self._ahead) if not step.ended.query()]

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
            ahead = self._not_ended()
            # The host counts steps before the device has made them.
            on_host = ahead[0].before if ahead else self._read_on_host()
            parameters = list(self._parameters())
            copied = {
                "steps": before[0],
                "tensors": {name: self._on_cpu(tensor) for name, tensor in self._tensors.items()},
                "state": {
                    position: self._all_on_cpu(self._optimizer.state[parameters[position]], values)
                    for position, values in on_host.state.items()
                },
                "groups": [
                    self._all_on_cpu(group, values)
                    for group, values in zip(self._optimizer.param_groups, on_host.groups, strict=True)
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
        self._ahead.clear()

    def _read_on_host(self) -> _OnHost:
        """Read what is on the host of parameters on a device; cheap, for it is read before each step."""
        state = self._optimizer.state
        return _OnHost(
            {
                position: _host_values(state[parameter]) if parameter.is_cuda else {}
                for position, parameter in enumerate(self._parameters())
                if parameter in state
            },
            [_host_values(group) for group in self._optimizer.param_groups],
        )

    def _parameters(self) -> Iterator[torch.Tensor]:
        groups: list[dict[str, Any]] = self._optimizer.param_groups
        for group in groups:
            yield from group["params"]

    def _versions(self) -> tuple[int, ...]:
        """Count the steps and each tensor's changes in place."""
        state = [value for one in self._optimizer.state.values() for value in one.values()]
        tensors = [*self._tensors.values(), *filter(torch.is_tensor, state)]
        return (self.steps, *(_local(tensor)._version for tensor in tensors))

    def _all_on_cpu(self, values: dict[str, Any], known: dict[str, Any]) -> dict[str, Any]:
        """Copy values of an optimizer, except those that are known."""
        others = {key: self._on_cpu(value) for key, value in values.items() if key not in known and key != "params"}
        return {**others, **{key: _tensors_in(value) for key, value in known.items()}}

    def _on_cpu(self, value: Any) -> Any:
        if isinstance(value, tuple):  # betas, which may be tensors
            return tuple(map(self._on_cpu, cast("tuple[Any, ...]", value)))
        if not isinstance(value, torch.Tensor):
            return value
        local = _local(value)
        with torch.cuda.stream(self._streams.get(local.device)):  # no stream: nothing is changed
            return local.detach().to("cpu", copy=True)


def _host_values(values: dict[str, Any]) -> dict[str, Any]:
    return {key: _copied(value) for key, value in values.items() if key != "params" and _is_on_host(value)}


def _is_on_host(value: Any) -> bool:
    if isinstance(value, tuple):  # betas, which may be tensors
        return all(map(_is_on_host, cast("tuple[Any, ...]", value)))
    return not isinstance(value, torch.Tensor) or not value.is_cuda


def _copied(value: Any) -> Any:
    """Copy a value on the host; a number in a tensor, of which each parameter may have one, faster than by `clone`."""
    if isinstance(value, tuple):
        return tuple(map(_copied, cast("tuple[Any, ...]", value)))
    if not isinstance(value, torch.Tensor):
        return value
    local = _local(value).detach()
    return local.clone() if local.ndim else _Number(local.item(), local.dtype)


def _tensors_in(value: Any) -> Any:
    """Undo `_copied`."""
    if isinstance(value, _Number):
        return torch.tensor(value.value, dtype=value.dtype)
    if isinstance(value, tuple):
        return tuple(map(_tensors_in, cast("tuple[Any, ...]", value)))
    return value


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
