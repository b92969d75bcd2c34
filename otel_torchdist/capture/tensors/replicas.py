"""Records checksums of replicated parameters before some steps. Agents compare them, without a collective.

Divergence persists, so comparing one step in a hundred detects it later, but always. DDP models are found in the
function that verifies the parameters of a new model, which receives both the group and the parameters. DTensors are
found in the optimizers that update them. The comparison comes before a step, not after it: ZeRO's optimizers distribute
the updates of a rank only after the step of the inner optimizer.
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
from otel_torchdist.capture.upstream import training
from otel_torchdist.model.kinds import How
from otel_torchdist.model.names import MAX_PARAMETERS, SPARE_OF_SHAPES, ParameterNames
from otel_torchdist.model.numerics import Parameters, Unseen
from otel_torchdist.tape.records.numerics import MAX_PARAMETERS as MAX_COMPARED
from otel_torchdist.tape.records.numerics import NumericsWord, mix_checksum, pack_parameters, sum_checksums

if TYPE_CHECKING:
    from otel_torchdist.capture.core.calls.call import GroupState
    from otel_torchdist.capture.core.cuda.readings import Reading
    from otel_torchdist.capture.core.recorder import Recorder
    from otel_torchdist.capture.tensors.device_values import DeviceValues
    from otel_torchdist.tape.writer import TapeWriter

_LOW_32: Final = (1 << 32) - 1
MAX_LETTERS: Final = 32_768
"""Maximum total length of a set's names. Further parameters are shown by number."""
MAX_NAMED: Final = 256
"""Maximum number of sets with cached name ids."""


class Replicas:
    """The session part that records checksums of replicated parameters."""

    def __init__(
        self,
        every: int,
        find_group: Callable[[ProcessGroup], GroupState | None],
        current: Callable[[], Recorder | None],
        devices: DeviceValues,
    ) -> None:
        """Initialize without models.

        Args:
            every: Interval in steps at which parameters are compared.
            find_group: Returns the state of a group, or None if nothing can be recorded.
            current: Returns the current recorder, or None.
            devices: Computes checksums of tensors on devices.
        """
        self._every = every
        self.is_reduced = False
        self._find_group = find_group
        self._current = current
        self._devices = devices
        self._models = WrappedModels()
        self._tensors = ReplicatedTensors()
        self._compared_step = 0
        self._awaits_tensors = False
        self._name_ids: dict[tuple[str, ...], int] = {}
        self._handles: list[Any] = []

    def hook(self, patches: Patches) -> None:
        """Hook the wrapping of models and the steps of optimizers."""
        patches.replace(ddp, training.CHECK_SHAPES, self._make_check)
        skip_in_dynamo(Replicas._before_step.__code__)
        self._handles.append(hook_before_optimizers(self._before_step))

    def unhook(self) -> None:
        """Stop comparing."""
        while self._handles:
            self._handles.pop().remove()

    def forget_steps(self) -> None:
        """Reset the comparison, because the tape ends. Models may outlive it."""
        self._compared_step = 0
        self._name_ids.clear()

    def _make_check(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def check(process_group: Any, tensors: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(process_group, tensors, *args, **kwargs)
            with guard.guarded("replicas"):
                # The caller is the constructor of the wrapper, which is not an argument.
                caller = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]  # `inspect` uses it, too
                self._models.learn(caller.f_locals.get("self"), process_group, tensors)
            return result

        return check

    def _before_step(self, optimizer: Optimizer) -> None:
        with guard.guarded("replicas"):
            recorder = self._current()
            is_due = recorder is not None and recorder.step > 0 and recorder.step % self._every == 0
            if recorder is not None and is_due and not self.is_reduced:
                begun_ns = time.monotonic_ns()
                self._compare(recorder)
                recorder.tape.add_overhead(time.monotonic_ns() - begun_ns, 0)
            self._tensors.learn(optimizer)

    def _compare(self, recorder: Recorder) -> None:
        """Record checksums before a training step's first optimizer step; of DTensors, once step counts are even."""
        if recorder.step != self._compared_step:
            self._compared_step = recorder.step
            for model in self._models.sets():
                self._record(recorder, model)
        elif not (self._awaits_tensors and self._tensors.are_even):
            return
        tensors = self._tensors.sets()
        self._awaits_tensors = tensors is None
        for parameters in tensors or ():
            self._record(recorder, parameters)

    def _record(self, recorder: Recorder, replicated: ParameterSet) -> None:
        group = self._find_group(replicated.process_group)
        if group is None or not group.name.aligned or not 0 < len(replicated.tensors) <= MAX_COMPARED:
            return
        if len({tensor.device for tensor in replicated.tensors}) > 1:
            return
        reading: Reading | Unseen | None = None
        total, sums = 0, tuple[int, ...]()
        with torch.no_grad():
            if replicated.tensors[0].is_cuda:
                reading = self._devices.parameters(replicated.tensors, replicated.salts)
            else:
                pairs = zip(replicated.tensors, replicated.salts, strict=True)
                total, sums = sum_checksums([mix_checksum(checksum_of([tensor]), salt) for tensor, salt in pairs])
        if isinstance(reading, Unseen):
            return
        step = recorder.step
        payload = pack_parameters(
            taken_ns=time.monotonic_ns(),
            step=step,
            sequence=(step & _LOW_32) << 32 | replicated.number,
            group=group.name_id,
            thread=threading.get_native_id(),
            elements=sum(tensor.numel() for tensor in replicated.tensors),
            parameters=Parameters(
                count=len(replicated.tensors),
                names=self._name(recorder, replicated.names),
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

    def _name(self, recorder: Recorder, parameter_names: Sequence[str]) -> int:
        """Return the id of the names of parameters, truncated to fit."""
        names = tuple(parameter_names)
        name_id = self._name_ids.get(names)
        if name_id is not None:
            return name_id
        letters_left, shown = MAX_LETTERS, list[str]()
        for name in names[:MAX_PARAMETERS]:
            letters_left -= len(name)
            if letters_left < 0:
                break
            shown.append(name)
        if len(self._name_ids) >= MAX_NAMED:
            self._name_ids.clear()
        self._name_ids[names] = name_id = recorder.tape.names.intern_optional(
            ParameterNames(tuple(shown)), SPARE_OF_SHAPES
        )
        return name_id


def _fill_in(tape: TapeWriter, number: int, row: bytes) -> None:
    """Complete a record with the checksums that a device has computed. The total is written last."""
    total, sums = parameters_in(row)
    for word, value in enumerate(sums):
        tape.mark(number, word, value, How.EVENT)
    tape.mark(number, NumericsWord.OUTPUT_CHECKSUM, total, How.EVENT)
