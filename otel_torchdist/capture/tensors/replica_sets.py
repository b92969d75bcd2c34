"""Finds parameters with replicas in other processes: those of DDP models, and replicated DTensors.

Nothing is kept alive or communicated, and only the local part of a DTensor is read. All members must form the same sets
without communication. DDP models are numbered per group in the order of wrapping, which is a collective. DTensors are
compared in the group of each mesh dimension along which they are replicated, all together, in a sum that does not
depend on the order of optimizers. If the names, shapes, types, placements or step counts of two ranks differ, their
sets have different numbers and are not compared. Nothing is compared while two indistinguishable parameters have
different numbers of updates.
"""

from __future__ import annotations

import sys
import weakref
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from otel_torchdist.capture.tensors.statistics import is_dense
from otel_torchdist.capture.upstream import training

MAX_MODELS: Final = 1_024
MAX_OPTIMIZERS: Final = 4_096
"""Maximum number of live optimizers. Programs that step in the backward pass have one per parameter."""
_DTENSOR_SET: Final = 1 << 31
_NUMBER_MASK: Final = _DTENSOR_SET - 1
_PLAIN: Final = (torch.Tensor, torch.nn.Parameter)
"""Classes of tensors that are read. Subclasses may run custom code."""


@dataclass(frozen=True, slots=True)
class ParameterSet:
    """Parameters that must be bitwise equal on all members of a group.

    Attributes:
        number: Identifies the set in the group, the same on all members; below 2^32.
        tensors: The parameters, or the local parts of DTensors.
        salts: A number for each parameter. A swap of parameters with equal salts is not detected.
        names: A name for each parameter.
    """

    process_group: Any
    number: int
    tensors: Sequence[torch.Tensor]
    salts: Sequence[int]
    names: Sequence[str]


@dataclass(frozen=True, slots=True)
class _Model:
    """A wrapped model, with weak references."""

    wrapper: weakref.ref[Any] | None
    process_group: weakref.ref[Any]
    number: int
    parameters: tuple[weakref.ref[torch.Tensor], ...]
    names: tuple[str, ...]

    def parameter_set(self) -> ParameterSet | None:
        """Return its parameters, or None if the model, a parameter or the group was freed."""
        group = self.process_group()
        tensors = [tensor for reference in self.parameters if (tensor := reference()) is not None]
        is_whole = group is not None and len(tensors) == len(self.parameters)
        if not is_whole or (self.wrapper is not None and self.wrapper() is None):
            return None
        return ParameterSet(group, self.number, [_local(tensor) for tensor in tensors], range(len(tensors)), self.names)


class WrappedModels:
    """The live models that DDP wraps."""

    def __init__(self) -> None:
        self._models: list[_Model] = []
        self._counts: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._left_out: weakref.WeakSet[Any] = weakref.WeakSet()

    @property
    def left_out(self) -> int:
        """Number of live models beyond the limit."""
        return len(self._left_out)

    def learn(self, wrapper: Any, process_group: Any, parameters: Iterable[torch.Tensor]) -> None:
        """Follow a model.

        Args:
            wrapper: Its `DistributedDataParallel`, or another object if unknown.
            process_group: Its group.
            parameters: Its parameters.
        """
        number = self._counts.get(process_group, 0)
        self._counts[process_group] = number + 1  # counts models beyond the limit, too: members must agree
        self._models = [model for model in self._models if model.parameter_set() is not None]
        is_known = _is_wrapper(wrapper)
        if len(self._models) >= MAX_MODELS:
            self._left_out.add(wrapper if is_known else process_group)
            return
        named: Iterable[tuple[str, torch.Tensor]] = wrapper.module.named_parameters() if is_known else ()
        names_by_id = {id(parameter): name for name, parameter in named}
        members = tuple(parameters)
        names = tuple(
            [
                names_by_id.get(id(parameter)) or _fallback_name(index, parameter)
                for index, parameter in enumerate(members)
            ]
        )
        self._models.append(
            _Model(
                wrapper=weakref.ref(wrapper) if is_known else None,
                process_group=weakref.ref(process_group),
                number=number & _NUMBER_MASK,
                parameters=tuple([weakref.ref(parameter) for parameter in members]),
                names=names,
            )
        )

    def sets(self) -> Iterator[ParameterSet]:
        """Yield the parameters of each model that is readable in full."""
        for model in list(self._models):
            parameters = model.parameter_set()
            if parameters is not None and all(map(_is_readable, parameters.tensors)):
                yield parameters


def _is_wrapper(candidate: object) -> bool:
    return isinstance(candidate, DistributedDataParallel)


@dataclass(slots=True)
class _Replicated:
    """Local parts of DTensors that are replicated along a mesh dimension."""

    process_group: Any
    tensors: list[torch.Tensor] = field(default_factory=list[torch.Tensor])
    salts: list[int] = field(default_factory=list[int])
    names: list[str] = field(default_factory=list[str])


class ReplicatedTensors:
    """The DTensors that live optimizers update."""

    def __init__(self, max_optimizers: int = MAX_OPTIMIZERS) -> None:
        self._max_optimizers = max_optimizers
        self._steps: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()
        self._left_out: weakref.WeakSet[Optimizer] = weakref.WeakSet()

    @property
    def left_out(self) -> int:
        """Number of live optimizers beyond the limit."""
        return len(self._left_out)

    @property
    def are_even(self) -> bool:
        """Whether all optimizers have made the same number of steps."""
        counts = iter(self._steps.values())
        first = next(counts, 0)
        return all(count == first for count in counts)

    def learn(self, optimizer: Optimizer) -> None:
        """Follow an optimizer that begins a step, and count the step."""
        steps = self._steps.get(optimizer, 0)
        if not steps and len(self._steps) >= self._max_optimizers:
            self._left_out.add(optimizer)
            return
        self._steps[optimizer] = steps + 1
        if self._left_out:
            self._left_out.discard(optimizer)

    def sets(self) -> list[ParameterSet] | None:
        """Return the replicated tensors of each group, or None if they cannot be compared at this moment."""
        distributed = getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", None)
        if distributed is None:  # the program uses no DTensors
            return []
        by_group: dict[int, _Replicated] = {}
        groups: dict[tuple[int, int], Any] = {}
        visited: set[int] = set()
        steps_of: dict[int, int] = {}
        for optimizer, steps in list(self._steps.items()):
            count = sum(len(group["params"]) for group in optimizer.param_groups)
            for index, parameter, name in _parameters_of(optimizer):
                if not isinstance(parameter, distributed) or id(parameter) in visited:
                    continue
                visited.add(id(parameter))
                salt = _salt(parameter, (name, count, index))
                if steps_of.setdefault(salt, steps) != steps:
                    return None
                _add_to_groups(parameter, name or _fallback_name(index, parameter, optimizer), salt, groups, by_group)
        return [
            # Numbers do not depend on the order of optimizers, which may differ between ranks.
            ParameterSet(entry.process_group, _number(entry.salts, steps_of), entry.tensors, entry.salts, entry.names)
            for entry in by_group.values()
        ]


def _number(salts: Iterable[int], steps_of: Mapping[int, int]) -> int:
    """Return the number of a set of DTensors, which includes their relative numbers of updates.

    Only differences count: a rank that has skipped a step must still be compared.
    """
    min_steps = min(steps_of.values())
    return (
        _DTENSOR_SET
        | zlib.crc32(repr([(salt, steps_of[salt] - min_steps) for salt in sorted(salts)]).encode()) & _NUMBER_MASK
    )


def _parameters_of(optimizer: Optimizer) -> Iterator[tuple[int, Any, str]]:
    """Yield index, parameter and name of all parameters of an optimizer; '' without a name."""
    index = 0
    for group in optimizer.param_groups:
        names = group.get("param_names") or ()
        for position, parameter in enumerate(group["params"]):
            yield index, parameter, names[position] if position < len(names) else ""
            index += 1


def _salt(parameter: Any, identity: tuple[str, int, int]) -> int:
    """Return a number for a DTensor, the same on all ranks that hold the same part of it.

    Args:
        parameter: The DTensor.
        identity: Its name, the number of parameters of its optimizer, and its index there.
    """
    shapes = tuple(parameter.shape), tuple(_local(parameter).shape)
    text = repr((identity, shapes, str(parameter.dtype), parameter.placements))
    return zlib.crc32(text.encode(errors="replace"))


def _add_to_groups(
    parameter: Any, name: str, salt: int, groups: dict[tuple[int, int], Any], by_group: dict[int, _Replicated]
) -> None:
    """Add a DTensor to the groups of all mesh dimensions along which it is replicated."""
    local, mesh = _local(parameter), parameter.device_mesh
    replicated = [dimension for dimension, placement in enumerate(parameter.placements) if placement.is_replicate()]
    if not replicated or not _is_readable(local) or mesh.get_coordinate() is None:
        return
    for dimension in replicated:
        key = id(mesh), dimension
        if key not in groups:
            groups[key] = _group_along(mesh, dimension)
        if groups[key] is None:
            continue
        entry = by_group.setdefault(id(groups[key]), _Replicated(groups[key]))
        entry.tensors.append(local)
        entry.salts.append(salt)
        entry.names.append(name)


def _group_along(mesh: Any, dimension: int) -> Any:
    """Return the group of a mesh dimension, perhaps the default group, or None if it has no group."""
    if mesh.size(dimension) < 2:
        return None
    try:
        return mesh.get_group(dimension)
    except (AssertionError, KeyError, RuntimeError, TypeError, ValueError):  # no group for this mesh, or destroyed
        return None


def _local(parameter: torch.Tensor) -> torch.Tensor:
    """Return this rank's part of a parameter. `to_local` would record a gradient, and arithmetic would communicate."""
    return getattr(parameter, training.LOCAL_TENSOR.name, parameter)


def _is_readable(tensor: torch.Tensor) -> bool:
    """Return whether a tensor's bits can be read without a copy."""
    if type(tensor) not in _PLAIN or tensor.layout is not torch.strided:
        return False
    return tensor.is_cpu or (tensor.is_cuda and is_dense(tensor))  # else a copy, which may not fit into memory


def _fallback_name(index: int, parameter: torch.Tensor, optimizer: Optimizer | None = None) -> str:
    """Return a description of a parameter without a name."""
    suffix = f" of {type(optimizer).__name__}" if optimizer is not None else ""
    return f"parameter {index}{suffix} ({'x'.join(map(str, parameter.shape)) or 'scalar'})"
