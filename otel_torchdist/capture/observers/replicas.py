"""Checksums of the parameters that DDP's replicas share, before some steps: agents compare them, without a collective.

Divergence persists, so comparing one step in a hundred delays the finding and misses nothing. DDP checks its parameters
once where a model is wrapped, by a function that is given both the group and the parameters. They are compared before a
step, not after it: ZeRO's optimizers distribute what one rank has updated only after the step of the inner optimizer.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.distributed import ProcessGroup
from torch.nn.parallel import distributed as ddp

from otel_torchdist import guard
from otel_torchdist.capture.observers.statistics import checksum_of
from otel_torchdist.capture.torch_api import Patches, hook_before_optimizers, skip_in_dynamo
from otel_torchdist.tape.layout import How
from otel_torchdist.tape.numerics import NumericsFlag, NumericsWord, checksum_word, pack_numerics

if TYPE_CHECKING:
    from otel_torchdist.capture.c10d.call import GroupState

_CHECKS_SHAPES: Final = "_verify_param_shape_across_processes"
MAX_MODELS: Final = 64


class Replicas:
    """The parameters of this process that have replicas in others."""

    def __init__(self, every: int, meet: Callable[[ProcessGroup], GroupState | None]) -> None:
        """Compare before each `every`-th step; `meet` finds or registers a group."""
        self._every = every
        self._meet = meet
        self._models: list[tuple[weakref.ref[Any], tuple[weakref.ref[torch.Tensor], ...]]] = []
        self._compared: dict[int, int] = {}
        self._handles: list[Any] = []

    def hook(self, patches: Patches) -> None:
        """Learn of models where they are wrapped, and compare before steps of optimizers."""
        patches.replace(ddp, _CHECKS_SHAPES, self._make_check)
        skip_in_dynamo(Replicas._compare_all.__code__, with_callees=False)
        self._handles.append(hook_before_optimizers(self._compare_all))

    def unhook(self) -> None:
        """Compare no more."""
        while self._handles:
            self._handles.pop().remove()

    def forget_steps(self) -> None:
        """Forget what was compared, because the tape ends; models may outlive it."""
        self._compared.clear()

    def _make_check(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def check(process_group: Any, tensors: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(process_group, tensors, *args, **kwargs)
            with guard.guarded("replicas"):
                self._learn(process_group, tensors)
            return result

        return check

    def _learn(self, process_group: Any, tensors: Any) -> None:
        if len(self._models) < MAX_MODELS:
            self._models.append((weakref.ref(process_group), tuple([weakref.ref(tensor) for tensor in tensors])))

    def _compare_all(self) -> None:
        with guard.guarded("replicas"):
            for place, (group, parameters) in enumerate(list(self._models)):
                self._compare(place, group(), parameters)

    def _compare(self, place: int, process_group: Any, references: tuple[weakref.ref[torch.Tensor], ...]) -> None:
        """Record the checksum of a model's parameters, once in each step that is due."""
        group = self._meet(process_group) if process_group is not None else None
        if group is None or not group.name.aligned:
            return
        recorder = group.recorder
        step = recorder.step
        if not step or step % self._every or self._compared.get(place) == step:
            return
        self._compared[place] = step
        parameters = [tensor for reference in references if (tensor := reference()) is not None]
        if len(parameters) != len(references) or not all(one.is_cpu for one in parameters):
            return
        with torch.no_grad():
            checksum = checksum_word(checksum_of(parameters))
        payload = pack_numerics(
            taken_ns=time.monotonic_ns(),
            step=step,
            sequence=step * MAX_MODELS + place,
            group=group.name_id,
            peer=-1,
            tag=0,
            thread=threading.get_native_id(),
            elements=sum(one.numel() for one in parameters),
            flags=int(NumericsFlag.PARAMETERS),
        )
        number = recorder.tape.write_numerics(payload, {})
        recorder.tape.mark(number, NumericsWord.OUTPUT_CHECKSUM, checksum, How.CALL)
