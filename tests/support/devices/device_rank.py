"""A rank whose operations run on a simulated device; hot path, tape and everything between are real."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.distributed import ProcessGroup, Work

from otel_torchdist.capture.core.c10d.completion import Works
from otel_torchdist.capture.core.c10d.devices import Devices
from otel_torchdist.capture.core.c10d.dispatcher import make_wait_tensor, make_wait_tensors
from otel_torchdist.capture.core.c10d.hot_path import HotPath
from otel_torchdist.capture.core.calls.call import OpenCall
from otel_torchdist.capture.core.calls.plans import UNSET_TIMEOUT
from otel_torchdist.capture.core.calls.schemas import OperationSchema, collective_schemas
from otel_torchdist.capture.core.cuda.operations import CudaOperations
from otel_torchdist.capture.core.groups.groups import Groups
from otel_torchdist.capture.core.recorder import Recorder
from otel_torchdist.capture.core.thread_labels import ThreadLabels
from otel_torchdist.capture.core.torch_api import Patches
from otel_torchdist.capture.parts.steps import StepDetector
from otel_torchdist.model.kinds import RunIdState
from otel_torchdist.model.operations import Operation
from otel_torchdist.tape.reading.reader import TapeReader
from tests.support.devices.simulated_device import Item, SimulatedDevice
from tests.support.waiting import until

MAIN_STREAM, NCCL_STREAM, OTHER_STREAM = 7, 8, 9
WATCHDOG_S = 0.1
DEVICE_KEYS = 2
"""The dispatcher's id for tensors on a device, as far as it is used: any other than the CPU's."""

_SCHEMAS = {schema.name: schema for schema in collective_schemas()}


def _same(keyset: Any) -> Any:
    return keyset


class DeviceTensor(torch.Tensor):
    """A tensor that claims to be on a device."""

    device_index: int

    @property
    def is_cpu(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]  # torch declares a variable
        """False."""
        return False

    @property
    def is_cuda(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]  # as above
        """True."""
        return True

    @property
    def device(self) -> torch.device:  # pyright: ignore[reportIncompatibleVariableOverride]  # as above
        """Its device."""
        return torch.device("cuda", self.device_index)

    def get_device(self) -> int:
        """Index of its device."""
        return self.device_index


def device_tensor(device: int = 0) -> DeviceTensor:
    """A small tensor on a device."""
    tensor = torch.ones(4).as_subclass(DeviceTensor)
    tensor.device_index = device
    return tensor


class NcclWork(Work):
    """What NCCL returns for an asynchronous operation: it keeps the output alive and has the watchdog's future."""

    def __init__(self, output: Any, result: torch.futures.Future[int]) -> None:
        super().__init__()
        self.output = output
        self.result_of_watchdog = result

    def get_future_result(self) -> torch.futures.Future[int]:
        """The future, which ends with a `WorkResult`."""
        return self.result_of_watchdog


class Sum:
    """A reduce op as the dispatcher passes it."""

    def op(self) -> int:
        """Its number."""
        return 0


@dataclass(eq=False)
class Issued:
    """An operation that was issued.

    Attributes:
        number: Number of its record.
        kernel: Its work on the device.
        work: Its Work; None for a synchronous one.
        result: The watchdog's future; None for a synchronous one.
        tensor: Its output.
    """

    number: int
    kernel: Item
    work: NcclWork | None = None
    result: torch.futures.Future[int] | None = None
    tensor: Any = None


@dataclass(eq=False)
class DeviceRank:
    """One rank with one group."""

    directory: Path
    device: SimulatedDevice = field(default_factory=SimulatedDevice)
    max_events: int = 64
    has_watchdog: bool = True
    rank: int = 0
    backend: str = "nccl"
    issued: list[Issued] = field(default_factory=list[Issued])

    def __post_init__(self) -> None:
        self.args: dict[OpenCall, tuple[Any, ...]] = {}
        self._wait_takes_s = 0.0
        self.patches = Patches()
        self.recorder = Recorder(self.directory, self.rank, 2, 1024)
        self.recorder.tape.set_run_id(0xFEED, RunIdState.AGREED)
        self.cuda = CudaOperations(self.device, self.device, self.has_watchdog, self.max_events)
        self.devices = Devices(lambda: self.cuda)
        works = Works(self.patches, lambda: None)
        self.groups = Groups()
        self.steps = StepDetector(self.groups.issued_by_default)
        self.hot_path = HotPath(
            self.groups, self.steps, works, self.devices, lambda group: self.group, ThreadLabels(None), lambda: None
        )
        new_group: Any = ProcessGroup
        self.process_group = new_group(self.rank, 2)
        self.group = Groups().register(self.recorder, self.process_group, (0, 1), 0)
        self.group.backend_on.names["cuda"] = self.backend  # c10d has none to offer on a machine without a device
        self.wait_tensor = make_wait_tensor(works, self.devices, self._wait_on_device, _same)
        self.wait_tensors = make_wait_tensors(works, self.devices, self._wait_for_all, _same)
        self.reader = TapeReader.of_writer(self.recorder.tape)
        self.operations: dict[int, Operation] = {}

    def use_group(self, process_group: ProcessGroup, ranks: tuple[int, ...]) -> None:
        """Use another group from now on."""
        self.process_group = process_group
        self.group = Groups().register(self.recorder, process_group, ranks, 0)

    def enter(
        self,
        name: str = "all_reduce",
        *,
        is_async: bool = False,
        tensor: Any = None,
        peer: int = 1,
        keys: int = DEVICE_KEYS,
    ) -> OpenCall:
        """What happens before the backend has an operation."""
        schema = _SCHEMAS[name]
        args = self._arguments(schema, device_tensor() if tensor is None else tensor, is_async, peer)
        call = self.hot_path.enter(schema, args, keys)
        assert call is not None
        self.args[call] = args
        return call

    def _arguments(self, schema: OperationSchema, tensor: Any, is_async: bool, peer: int) -> tuple[Any, ...]:
        values: dict[int, Any] = {
            schema.described: [tensor],
            schema.group: self.process_group.boxed(),
            schema.reduce_op: Sum(),
            schema.async_op: is_async,
            schema.peer: peer,
            schema.tag: 0,
            schema.timeout: UNSET_TIMEOUT,
        }
        count = len(schema.overload._schema.arguments)
        return tuple(values.get(index) for index in range(count))

    def leave(self, call: OpenCall, work: NcclWork | None = None) -> None:
        """What happens when the backend has accepted it."""
        boxed = None if work is None else work.boxed()
        self.hot_path.leave(call, boxed if call.operation.work == 0 else (None, boxed), self.args.pop(call))

    def refuse(self, call: OpenCall, error: BaseException) -> None:
        """What happens when the backend has raised."""
        del self.args[call]
        self.hot_path.failed(call, error)

    def run(self, lasts_ns: int | None, *, stream: int = MAIN_STREAM, device: int = 0) -> Issued:
        """A synchronous all_reduce on a stream, for which only newer backends return a Work."""
        self.device.use_stream(stream)
        call = self.enter(tensor=device_tensor(device))
        kernel = self.device.launch(stream, lasts_ns)
        if self.backend == "nccl":
            self.leave(call)
            return self._keep(Issued(call.number, kernel))
        result: torch.futures.Future[int] = torch.futures.Future()
        work = NcclWork(None, result)
        self.leave(call, work)
        return self._keep(Issued(call.number, kernel, work, result))

    def start(
        self, lasts_ns: int | None, name: str = "all_reduce", *, peer: int = 1, stream: int = NCCL_STREAM
    ) -> Issued:
        """An asynchronous operation: NCCL's stream waits for the caller's."""
        self.device.use_stream(MAIN_STREAM)
        tensor = device_tensor()
        call = self.enter(name, is_async=True, tensor=tensor, peer=peer)
        reached = self.device.launch(MAIN_STREAM, 0)
        kernel = self.device.launch(stream, lasts_ns, reached)
        result: torch.futures.Future[int] = torch.futures.Future()
        work = NcclWork(tensor, result)
        self.leave(call, work)
        return self._keep(Issued(call.number, kernel, work, result, tensor))

    def _keep(self, issued: Issued) -> Issued:
        self.issued.append(issued)
        return issued

    def _wait_on_device(self, keyset: Any, tensor: Any) -> Any:
        time.sleep(self._wait_takes_s)
        for issued in self.issued:
            if issued.tensor is tensor:
                self.device.wait_for(MAIN_STREAM, issued.kernel)
        return tensor

    def _wait_for_all(self, keyset: Any, tensors: Any) -> Any:
        return [self._wait_on_device(keyset, tensor) for tensor in tensors]

    def wait_on_stream(self, issued: Issued, takes_s: float = 0.0) -> None:
        """The caller's stream waits for an asynchronous operation, as for functional collectives.

        Args:
            issued: The operation.
            takes_s: How long this takes on the host.
        """
        self._wait_takes_s = takes_s
        self.wait_tensor(NO_KEYS, issued.tensor)

    def watchdog(self, value: int = 0) -> None:
        """A round of PyTorch's watchdog: it reports how finished operations ended."""
        for issued in self.issued:
            if issued.result is not None and not issued.result.done() and self.device.is_over(issued.kernel):
                issued.result.set_result(value)

    def read(self) -> dict[int, Operation]:
        """All operations as they are on the tape now."""
        batch = self.reader.poll()
        for operation in (*batch.entered, *self.reader.open_operations(), *batch.ended):
            self.operations[operation.number] = operation
        return self.operations

    def __getitem__(self, issued: Issued) -> Operation:
        return self.read()[issued.number]

    def until(self, condition: Callable[[], object], watchdog: bool = False) -> None:
        """Wait for a condition; with `watchdog`, the watchdog makes its rounds meanwhile."""
        next_round = time.monotonic() + WATCHDOG_S

        def holds() -> bool:
            nonlocal next_round
            if watchdog and time.monotonic() >= next_round:
                next_round += WATCHDOG_S
                self.watchdog()
            return bool(condition())

        until(holds)

    def until_ended(self, *issued: Issued, watchdog: bool = False) -> list[Operation]:
        """Wait until operations have ended on the tape."""
        self.until(lambda: not any(self[one].is_open for one in issued), watchdog)
        return [self[one] for one in issued]

    def close(self) -> None:
        """Stop the watch, restore torch and close the tape."""
        self.cuda.poller.stop(5.0, destroy_events=False)
        self.patches.restore()
        self.recorder.tape.close()


class _NoKeys:
    """A key set of the dispatcher, as far as a kernel uses it."""

    def remove(self, key: Any) -> _NoKeys:
        """The key set without a key."""
        return self


NO_KEYS = _NoKeys()


@contextmanager
def device_rank(directory: Path, **arguments: Any) -> Iterator[DeviceRank]:
    """A rank, closed at the end."""
    rank = DeviceRank(directory, **arguments)
    try:
        yield rank
    finally:
        rank.close()
