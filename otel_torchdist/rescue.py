"""Saves a rank's state during a stall, and finds it after the restart.

    from otel_torchdist import StalledRank, rescue

    shards = rescue.LocalShards(model, optimizer)        # once, when both are complete

    def save(stalled: StalledRank) -> int:               # OTEL_PYTHON_TORCHDIST_ON_STALL=rescue:__main__:save,abort
        copied = shards.copy()
        rescue.save(copied, stalled, DIRECTORY, step=copied["steps"])
        return copied["steps"]

    saved = rescue.latest(DIRECTORY, rank, world_size)   # before training begins
    if saved is not None:
        shards.load(torch.load(saved))

Nothing here issues a collective, which would hang in a stall.
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

from otel_torchdist.capture.upstream import training

if TYPE_CHECKING:
    from otel_torchdist.capture.parts.rescue import StalledRank

MAX_AHEAD: Final = 64
"""Maximum number of optimizer steps that a program enqueues on a device beyond the last completed step."""
_COUNTS_ON_DEVICE: Final = ("capturable", "fused")
"""Options of optimizers that keep their step counts on the parameters' device."""
_STEP: Final = re.compile(r"step-(\d{1,18})")


@dataclass(frozen=True, slots=True)
class _Scalar:
    """The content of a scalar tensor."""

    value: float
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class _HostState:
    """The part of an optimizer's state on the host, such as step counts and learning rates.

    Attributes:
        state: Host values of each parameter with a state, by index of the parameter.
        groups: Host values of each parameter group.
    """

    state: dict[int, dict[str, Any]]
    groups: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class _Enqueued:
    """An optimizer step that has been enqueued on a device.

    Attributes:
        ended: Event behind the step.
        before: The state on the host before the step.
    """

    ended: torch.cuda.Event
    before: _HostState


class LocalShards:
    """This rank's part of a model and its optimizer: whole tensors, or shards (FSDP2, other DTensors).

    It keeps references to the parameters, because FSDP2 replaces the parameters of a module while it computes.
    """

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Start counting the steps of the optimizer.

        Args:
            model: The model, with its parameters on the devices and in the shards of the training.
            optimizer: Its optimizer.
        """
        self._tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        self._optimizer = optimizer
        self._steps = 0
        self._ahead: deque[_Enqueued] = deque(maxlen=MAX_AHEAD)
        devices = {tensor.device for tensor in self._tensors.values() if tensor.device.type == "cuda"}
        # Created now: in a stall, CUDA may wait for the device to create a stream.
        self._streams = {device: torch.cuda.Stream(device) for device in devices}
        self._on_host = _HostState({}, [])
        optimizer.register_step_pre_hook(self._before_step)
        optimizer.register_step_post_hook(self._after_step)

    def _before_step(self, optimizer: torch.optim.Optimizer, args: object, kwargs: object) -> None:
        if self._streams:
            self._on_host = self._read_on_host()

    def _after_step(self, optimizer: torch.optim.Optimizer, args: object, kwargs: object) -> None:
        self._steps += 1
        if self._streams and not torch.cuda.is_current_stream_capturing():
            while self._ahead and self._ahead[0].ended.query():
                self._ahead.popleft()
            event = torch.cuda.Event()
            event.record()
            self._ahead.append(_Enqueued(event, self._on_host))

    @property
    def steps(self) -> int:
        """Number of optimizer steps in the parameters, since construction or loading.

        A program runs ahead of its device: it may have enqueued steps that wait for the hanging operation. These do not
        count.
        """
        return self._steps - len(self._not_ended())

    def _not_ended(self) -> list[_Enqueued]:
        return [step for step in tuple(self._ahead) if not step.ended.query()]

    def copy(self) -> dict[str, Any]:
        """Copy everything to the CPU. On a device, a separate stream copies, without waiting for other streams.

        Returns:
            `steps` (see the property), `tensors` by name in the model, and the optimizer's `state` (by index of the
            parameter) and `groups`. `torch.load` reads it without unpickling code.

        Raises:
            RuntimeError: The parameters changed meanwhile, so the copy may mix two steps.
        """
        with torch.no_grad():
            before = self._versions()
            ahead = self._not_ended()
            # The host's state is ahead of the device.
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
        """Restore a copy into the same kind of model and optimizer, in a run with the same number of ranks.

        Args:
            copied: Result of `copy` in the rank with this rank's number.

        Raises:
            ValueError: The copy is of another model or of other shards. Nothing was changed.
        """
        saved: dict[str, torch.Tensor] = copied["tensors"]
        shapes = {name: _local(tensor).shape for name, tensor in self._tensors.items()}
        mismatched = {
            name for name in shapes.keys() | saved.keys() if name not in saved or saved[name].shape != shapes.get(name)
        }
        if mismatched:
            raise ValueError(f"the copy is of another model, or of other shards: {', '.join(sorted(mismatched)[:5])}")
        with torch.no_grad():
            for name, tensor in self._tensors.items():
                _local(tensor).copy_(saved[name])
            for group, saved_group in zip(self._optimizer.param_groups, copied["groups"], strict=True):
                for key, value in saved_group.items():
                    group[key] = _restore_option(group.get(key), value)
            owners = [(parameter, group) for group in self._optimizer.param_groups for parameter in group["params"]]
            states: dict[int, dict[str, Any]] = copied["state"]
            for position, state in states.items():
                parameter, group = owners[position]
                on_device = any(group.get(name) for name in _COUNTS_ON_DEVICE)
                self._optimizer.state[parameter] = {
                    key: _restore_state(parameter, value, on_device) for key, value in state.items()
                }
        self._steps = copied["steps"]
        self._ahead.clear()

    def _read_on_host(self) -> _HostState:
        """Read the host state of parameters on devices. Cheap, because it runs before each step."""
        state = self._optimizer.state
        return _HostState(
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
        """Return the number of steps, and the version counter of each tensor."""
        state = [value for values in self._optimizer.state.values() for value in values.values()]
        tensors = [*self._tensors.values(), *filter(torch.is_tensor, state)]
        return (self.steps, *(training.TENSOR_VERSION.of(_local(tensor), object()) for tensor in tensors))

    def _all_on_cpu(self, values: dict[str, Any], on_host: dict[str, Any]) -> dict[str, Any]:
        """Copy values of an optimizer to the CPU. Values in `on_host` are already copied."""
        on_device = {
            key: self._on_cpu(value) for key, value in values.items() if key not in on_host and key != "params"
        }
        return {**on_device, **{key: _to_tensors(value) for key, value in on_host.items()}}

    def _on_cpu(self, value: Any) -> Any:
        if isinstance(value, tuple):  # betas, which may be tensors
            return tuple(map(self._on_cpu, cast("tuple[Any, ...]", value)))
        if not isinstance(value, torch.Tensor):
            return value
        local = _local(value)
        with torch.cuda.stream(self._streams.get(local.device)):  # does nothing for `None`
            return local.detach().to("cpu", copy=True)


def _host_values(values: dict[str, Any]) -> dict[str, Any]:
    return {key: _copy_on_host(value) for key, value in values.items() if key != "params" and _is_on_host(value)}


def _is_on_host(value: Any) -> bool:
    if isinstance(value, tuple):  # betas, which may be tensors
        return all(map(_is_on_host, cast("tuple[Any, ...]", value)))
    return not isinstance(value, torch.Tensor) or not value.is_cuda


def _copy_on_host(value: Any) -> Any:
    """Copy a value on the host. Scalars, one per parameter, are read as numbers, which is cheaper than `clone`."""
    if isinstance(value, tuple):
        return tuple(map(_copy_on_host, cast("tuple[Any, ...]", value)))
    if not isinstance(value, torch.Tensor):
        return value
    local = _local(value).detach()
    return local.clone() if local.ndim else _Scalar(local.item(), local.dtype)


def _to_tensors(value: Any) -> Any:
    """Undo `_copy_on_host`."""
    if isinstance(value, _Scalar):
        return torch.tensor(value.value, dtype=value.dtype)
    if isinstance(value, tuple):
        return tuple(map(_to_tensors, cast("tuple[Any, ...]", value)))
    return value


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _restore_option(current: Any, saved: Any) -> Any:
    """Restore a saved option of an optimizer. Tensors are filled in place, because compiled code reads them."""
    if isinstance(current, torch.Tensor) and isinstance(saved, torch.Tensor) and current.shape == saved.shape:
        return current.copy_(saved)
    if isinstance(current, tuple) and isinstance(saved, tuple):  # betas
        return tuple(map(_restore_option, cast("tuple[Any, ...]", current), cast("tuple[Any, ...]", saved)))
    return saved


def _restore_state(parameter: torch.Tensor, value: Any, on_device: bool) -> Any:
    """Restore a saved value of an optimizer's state. A value with the shape of the parameter's shard becomes a shard.

    Args:
        parameter: The parameter.
        value: The value, on the CPU.
        on_device: Whether scalars, such as step counts, are on the parameter's device.
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
    """Write this rank's state atomically.

    Args:
        state: Any object that `torch.save` accepts.
        stalled: The argument of the rescue function.
        directory: A directory that all ranks share; by default `stalled.directory` on this node.
        step: The step of the state; `stalled.step` by default.

    Returns:
        The file: `step-<step>/rank-<rank>-of-<world size>.pt` in the directory.

    Raises:
        OSError: The file cannot be written. A partial file is named `.incomplete`.
    """
    folder = Path(directory or stalled.directory) / f"step-{stalled.step if step is None else step}"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / _file_name(stalled.rank, stalled.world_size)
    incomplete = path.with_name(f"{path.name}.incomplete")
    with open(incomplete, "wb") as stream:
        torch.save(state, stream)
        stream.flush()
        os.fsync(stream.fileno())
    return incomplete.replace(path)


def latest(directory: Path | str, rank: int, world_size: int) -> Path | None:
    """Find this rank's file of the newest step that all ranks have saved.

    Args:
        directory: A directory that all ranks share, or that has the same files for all of them.
        rank: This rank.
        world_size: Number of ranks. Files of runs with a different number of ranks are ignored.

    Returns:
        The file, or None if there is none.
    """
    steps = [(int(match[1]), folder) for folder in _folders(Path(directory)) if (match := _STEP.fullmatch(folder.name))]
    for _, folder in sorted(steps, reverse=True):
        if all((folder / _file_name(other, world_size)).exists() for other in range(world_size)):
            return folder / _file_name(rank, world_size)
    return None


def _folders(directory: Path) -> list[Path]:
    return list(directory.iterdir()) if directory.is_dir() else []


def _file_name(rank: int, world_size: int) -> str:
    return f"rank-{rank}-of-{world_size}.pt"
