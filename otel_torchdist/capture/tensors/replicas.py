"""Checksums of the parameters that replicas share, before some steps: agents compare them, without a collective.

Divergence persists, so comparing one step in a hundred delays the finding and misses nothing. DDP checks its parameters
once where a model is wrapped, by a function that is given both the group and the parameters; DTensors are found in the
optimizers that update them. They are compared before a step, not after it: ZeRO's optimizers distribute what one rank
has updated only after the step of the inner optimizer.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.distributed import ProcessGroup
from torch.nn.parallel import distributed as ddp
from torch.optim import Optimizer

from otel_torchdist import guard
from otel_torchdist.capture.core.torch_api import Patches, hook_before_optimizers, skip_in_dynamo
from otel_torchdist.capture.tensors.device_values import parameters_in
from otel_torchdist.capture.tensors.replica_sets import ParameterSet, ReplicatedTensors, WrappedModels
from otel_torchdist.capture.tensors.statistics import checksum_of
from otel_torchdist.model.kinds import How
from otel_torchdist.model.names import MAX_PARAMETERS, SPARE_OF_SHAPES, ParameterNames
from otel_torchdist.model.numerics import Parameters, Unseen
from otel_torchdist.tape.records.numerics import MAX_PARAMETERS as MAX_COMPARED
from otel_torchdist.tape.records.numerics import NumericsWord, mixed, pack_parameters, summed

if TYPE_CHECKING:
    from otel_torchdist.capture.core.calls.call import GroupState
    from otel_torchdist.capture.core.cuda.readings import Reading
    from otel_torchdist.capture.core.recorder import Recorder
    from otel_torchdist.capture.tensors.device_values import DeviceValues
    from otel_torchdist.tape.writer import TapeWriter

_CHECKS_SHAPES: Final = "_verify_param_shape_across_processes"
_LOW_32: Final = (1 << 32) - 1
MAX_LETTERS: Final = 32_768
"""Letters of a set's names; parameters beyond have a number."""
MAX_NAMED: Final = 256
"""Sets whose names are known to be written."""


class Replicas:
    """The parameters of this process that have replicas in others."""

    def __init__(
        self,
        every: int,
        find_group: Callable[[ProcessGroup], GroupState | None],
        current: Callable[[], Recorder | None],
        devices: DeviceValues,
    ) -> None:
        """Compare parameters.

        Args:
            every: Before each step whose number is a multiple of this.
            find_group: Finds or registers a group.
            current: Returns the recorder in use.
            devices: Looks at tensors on devices.
        """
        self._every = every
        self._find_group = find_group
        self._current = current
        self._devices = devices
        self._models = WrappedModels()
        self._tensors = ReplicatedTensors()
        self._compared_step = 0
        self._awaits_tensors = False
        self._named: dict[tuple[str, ...], int] = {}
        self._handles: list[Any] = []

    def hook(self, patches: Patches) -> None:
        """Learn of models where they are wrapped, and compare before steps of optimizers."""
        patches.replace(ddp, _CHECKS_SHAPES, self._make_check)
        skip_in_dynamo(Replicas._before_step.__code__)
        self._handles.append(hook_before_optimizers(self._before_step))

    def unhook(self) -> None:
        """Compare no more."""
        while self._handles:
            self._handles.pop().remove()

    def forget_steps(self) -> None:
        """Forget what was compared, because the tape ends; models may outlive it."""
        self._compared_step = 0
        self._named.clear()

    def _make_check(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def check(process_group: Any, tensors: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(process_group, tensors, *args, **kwargs)
            with guard.guarded("replicas"):
                # It is called by the constructor of the wrapper, which is not among its arguments.
                caller = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]  # what `inspect` would call
                self._models.learn(caller.f_locals.get("self"), process_group, tensors)
            return result

        return check

    def _before_step(self, optimizer: Optimizer) -> None:
        with guard.guarded("replicas"):
            recorder = self._current()
            if recorder is not None and recorder.step > 0 and recorder.step % self._every == 0:
                self._compare(recorder)
            self._tensors.learn(optimizer)

    def _compare(self, recorder: Recorder) -> None:
        """Take checksums before the first step of an optimizer in a training step, of DTensors as soon as possible."""
        if recorder.step != self._compared_step:
            self._compared_step = recorder.step
            for model in self._models.sets():
                self._record(recorder, model)
        elif not (self._awaits_tensors and self._tensors.are_even):
            return
        tensors = self._tensors.sets()
        self._awaits_tensors = tensors is None
        for found in tensors or ():
            self._record(recorder, found)

    def _record(self, recorder: Recorder, found: ParameterSet) -> None:
        group = self._find_group(found.process_group)
        if group is None or not group.name.aligned or not 0 < len(found.tensors) <= MAX_COMPARED:
            return
        if len({tensor.device for tensor in found.tensors}) > 1:
            return
        reading: Reading | Unseen | None = None
        total, sums = 0, tuple[int, ...]()
        with torch.no_grad():
            if found.tensors[0].is_cuda:
                reading = self._devices.parameters(found.tensors, found.salts)
            else:
                pairs = zip(found.tensors, found.salts, strict=True)
                total, sums = summed([mixed(checksum_of([tensor]), salt) for tensor, salt in pairs])
        if isinstance(reading, Unseen):
            return
        step = recorder.step
        payload = pack_parameters(
            taken_ns=time.monotonic_ns(),
            step=step,
            sequence=(step & _LOW_32) << 32 | found.number,
            group=group.name_id,
            thread=threading.get_native_id(),
            elements=sum(tensor.numel() for tensor in found.tensors),
            parameters=Parameters(
                count=len(found.tensors),
                names=self._name(recorder, found.names),
                left_out=self._models.left_out + self._tensors.left_out,
                sums=sums,
            ),
        )
        tape = recorder.tape
        number = tape.write_numerics(payload, dict(enumerate(sums)))
        if reading is None:
            tape.mark(number, NumericsWord.OUTPUT_CHECKSUM, total, How.CALL)
        else:
            self._devices.read(reading, lambda row: _fill_in(tape, number, row))

    def _name(self, recorder: Recorder, given: Sequence[str]) -> int:
        """Id of the names of parameters, of as many as there is room for."""
        names = tuple(given)
        known = self._named.get(names)
        if known is not None:
            return known
        room, shown = MAX_LETTERS, list[str]()
        for name in names[:MAX_PARAMETERS]:
            room -= len(name)
            if room < 0:
                break
            shown.append(name)
        if len(self._named) >= MAX_NAMED:
            self._named.clear()
        self._named[names] = found = recorder.tape.names.find_room(ParameterNames(tuple(shown)), SPARE_OF_SHAPES)
        return found


def _fill_in(tape: TapeWriter, number: int, row: bytes) -> None:
    """Complete a record when a device has found out the checksums of its parameters: the sum of all last."""
    total, sums = parameters_in(row)
    for word, value in enumerate(sums):
        tape.mark(number, word, value, How.EVENT)
    tape.mark(number, NumericsWord.OUTPUT_CHECKSUM, total, How.EVENT)
