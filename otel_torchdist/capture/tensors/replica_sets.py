"""Which parameters of this process have replicas in others: those of DDP's models, and replicated DTensors.

Nothing is kept alive, and nothing is communicated: of a DTensor only the local part is read. What belongs together must
be the same on all members without a word between them. DDP's models are numbered in each group in the order in which
they are wrapped, which is a collective. DTensors are compared by the group of each mesh dimension along which they are
replicated, all together, in a sum that does not depend on the order in which optimizers were first seen. Sets that are
not the same on two ranks, by names, shapes, types, placements or steps made, have different numbers and never meet; and
nothing is compared while of two parameters that nothing distinguishes one has been updated more often.
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

MAX_MODELS: Final = 1_024
MAX_OPTIMIZERS: Final = 4_096
"""Living ones; programs that step in the backward pass have an optimizer for each parameter."""
_OF_TENSORS: Final = 1 << 31
_NUMBERS: Final = _OF_TENSORS - 1
_PLAIN: Final = (torch.Tensor, torch.nn.Parameter)
"""Other classes may compute with a tensor in a way of their own."""


@dataclass(frozen=True, slots=True)
class ParameterSet:
    """Parameters that must be equal, bit by bit, on all members of a group.

    Attributes:
        process_group: The group.
        number: Distinguishes it from the group's other sets, below 2^32; the same on all members.
        tensors: The parameters, of DTensors the local parts.
        salts: A number for each. Those with the same may have changed places unseen.
        names: A name for each.
    """

    process_group: Any
    number: int
    tensors: Sequence[torch.Tensor]
    salts: Sequence[int]
    names: Sequence[str]


@dataclass(frozen=True, slots=True)
class _Model:
    """A wrapped model; what it refers to may be gone."""

    wrapper: weakref.ref[Any] | None
    process_group: weakref.ref[Any]
    number: int
    parameters: tuple[weakref.ref[torch.Tensor], ...]
    names: tuple[str, ...]

    def now(self) -> ParameterSet | None:
        """Its parameters; None if it is gone, or one of its parameters or its group is."""
        group = self.process_group()
        tensors = [tensor for reference in self.parameters if (tensor := reference()) is not None]
        is_whole = group is not None and len(tensors) == len(self.parameters)
        if not is_whole or (self.wrapper is not None and self.wrapper() is None):
            return None
        return ParameterSet(group, self.number, [_local(one) for one in tensors], range(len(tensors)), self.names)


class WrappedModels:
    """The living models that are wrapped by DDP."""

    def __init__(self) -> None:
        self._models: list[_Model] = []
        self._counts: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._left_out: weakref.WeakSet[Any] = weakref.WeakSet()

    @property
    def left_out(self) -> int:
        """How many living models are not followed, because there were too many."""
        return len(self._left_out)

    def learn(self, wrapper: Any, process_group: Any, parameters: Iterable[torch.Tensor]) -> None:
        """Follow a model.

        Args:
            wrapper: Its `DistributedDataParallel`, as far as that is known.
            process_group: Its group.
            parameters: Its parameters.
        """
        number = self._counts.get(process_group, 0)
        self._counts[process_group] = number + 1  # also of those that are left out: members must agree
        self._models = [one for one in self._models if one.now() is not None]
        is_known = _is_wrapper(wrapper)
        if len(self._models) >= MAX_MODELS:
            self._left_out.add(wrapper if is_known else process_group)
            return
        named: Iterable[tuple[str, torch.Tensor]] = wrapper.module.named_parameters() if is_known else ()
        known = {id(parameter): name for name, parameter in named}
        given = tuple(parameters)
        names = tuple([known.get(id(one)) or _described(place, one) for place, one in enumerate(given)])
        self._models.append(
            _Model(
                wrapper=weakref.ref(wrapper) if is_known else None,
                process_group=weakref.ref(process_group),
                number=number & _NUMBERS,
                parameters=tuple([weakref.ref(one) for one in given]),
                names=names,
            )
        )

    def sets(self) -> Iterator[ParameterSet]:
        """Their parameters, of each that can be read here in full."""
        for model in list(self._models):
            found = model.now()
            if found is not None and all(map(_is_readable, found.tensors)):
                yield found


def _is_wrapper(given: object) -> bool:
    return isinstance(given, DistributedDataParallel)


@dataclass(slots=True)
class _Replicated:
    """Local parts of DTensors that are replicated along one dimension of a mesh."""

    process_group: Any
    tensors: list[torch.Tensor] = field(default_factory=list[torch.Tensor])
    salts: list[int] = field(default_factory=list[int])
    names: list[str] = field(default_factory=list[str])


class ReplicatedTensors:
    """The DTensors that living optimizers update."""

    def __init__(self, max_optimizers: int = MAX_OPTIMIZERS) -> None:
        self._max_optimizers = max_optimizers
        self._steps: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()
        self._left_out: weakref.WeakSet[Optimizer] = weakref.WeakSet()

    @property
    def left_out(self) -> int:
        """How many living optimizers are not followed, because there are too many."""
        return len(self._left_out)

    @property
    def are_even(self) -> bool:
        """Whether all optimizers have made as many steps."""
        counts = iter(self._steps.values())
        first = next(counts, 0)
        return all(count == first for count in counts)

    def learn(self, optimizer: Optimizer) -> None:
        """Follow an optimizer that begins a step; it counts as made."""
        steps = self._steps.get(optimizer, 0)
        if not steps and len(self._steps) >= self._max_optimizers:
            self._left_out.add(optimizer)
            return
        self._steps[optimizer] = steps + 1
        if self._left_out:
            self._left_out.discard(optimizer)

    def sets(self) -> list[ParameterSet] | None:
        """What is replicated, by the group along which it is; None if it cannot be compared at this moment."""
        distributed = getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", None)
        if distributed is None:  # the program has none
            return []
        found: dict[int, _Replicated] = {}
        groups: dict[tuple[int, int], Any] = {}
        seen: set[int] = set()
        steps_of: dict[int, int] = {}
        for optimizer, steps in list(self._steps.items()):
            count = sum(len(group["params"]) for group in optimizer.param_groups)
            for place, parameter, name in _parameters_of(optimizer):
                if not isinstance(parameter, distributed) or id(parameter) in seen:
                    continue
                seen.add(id(parameter))
                salt = _salt(parameter, (name, count, place))
                if steps_of.setdefault(salt, steps) != steps:
                    return None
                _sort_in(parameter, name or _described(place, parameter, optimizer), salt, groups, found)
        return [
            # Not by their order: optimizers may be seen in another one on other ranks.
            ParameterSet(one.process_group, _number(one.salts, steps_of), one.tensors, one.salts, one.names)
            for one in found.values()
        ]


def _number(salts: Iterable[int], steps_of: Mapping[int, int]) -> int:
    """Return the number of a set of DTensors that were updated so often.

    Only how much more often one was than others: a rank that has left out a step must still meet the others.
    """
    least = min(steps_of.values())
    return (
        _OF_TENSORS | zlib.crc32(repr([(salt, steps_of[salt] - least) for salt in sorted(salts)]).encode()) & _NUMBERS
    )


def _parameters_of(optimizer: Optimizer) -> Iterator[tuple[int, Any, str]]:
    """Place, parameter and name of all that an optimizer updates; '' where it was not given names."""
    place = 0
    for group in optimizer.param_groups:
        names = group.get("param_names") or ()
        for nth, parameter in enumerate(group["params"]):
            yield place, parameter, names[nth] if nth < len(names) else ""
            place += 1


def _salt(parameter: Any, identity: tuple[str, int, int]) -> int:
    """Return a number for a DTensor, the same on all ranks that have the same part of it.

    Args:
        parameter: It.
        identity: Its name, how many parameters its optimizer has, and its place there.
    """
    shapes = tuple(parameter.shape), tuple(_local(parameter).shape)
    text = repr((identity, shapes, str(parameter.dtype), parameter.placements))
    return zlib.crc32(text.encode(errors="replace"))


def _sort_in(
    parameter: Any, name: str, salt: int, groups: dict[tuple[int, int], Any], found: dict[int, _Replicated]
) -> None:
    """Add a DTensor to what is replicated along each of its dimensions."""
    local, mesh = _local(parameter), parameter.device_mesh
    replicated = [nth for nth, placement in enumerate(parameter.placements) if placement.is_replicate()]
    if not replicated or not _is_readable(local) or mesh.get_coordinate() is None:
        return
    for dimension in replicated:
        key = id(mesh), dimension
        if key not in groups:
            groups[key] = _group_along(mesh, dimension)
        if groups[key] is None:
            continue
        of_group = found.setdefault(id(groups[key]), _Replicated(groups[key]))
        of_group.tensors.append(local)
        of_group.salts.append(salt)
        of_group.names.append(name)


def _group_along(mesh: Any, dimension: int) -> Any:
    """Return the group of a mesh dimension, which is the default group if it covers the world; None if it has no group."""
    if mesh.size(dimension) < 2:
        return None
    try:
        return mesh.get_group(dimension)
    except (AssertionError, KeyError, RuntimeError, TypeError, ValueError):  # not made for this mesh, or destroyed
        return None


def _local(parameter: torch.Tensor) -> torch.Tensor:
    """What this rank holds of a parameter. `to_local` would record a gradient; arithmetic on it would communicate."""
    return getattr(parameter, "_local_tensor", parameter)


def _is_readable(tensor: torch.Tensor) -> bool:
    """Return whether a tensor's bits can be read here and now."""
    if type(tensor) not in _PLAIN or tensor.layout is not torch.strided:
        return False
    return tensor.is_cpu or (tensor.is_cuda and is_dense(tensor))  # else it would be copied, and there may be no room


def _described(place: int, parameter: torch.Tensor, optimizer: Optimizer | None = None) -> str:
    """What stands for the name of a parameter without one."""
    of = f" of {type(optimizer).__name__}" if optimizer is not None else ""
    return f"parameter {place}{of} ({'x'.join(map(str, parameter.shape)) or 'scalar'})"
