"""Examines values on a simulated device on which any wait for the device raises."""

from __future__ import annotations

import sys
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from otel_torchdist.capture.parts.steps import mark_step
from otel_torchdist.capture.tensors import eligible
from otel_torchdist.capture.tensors.choice import Observers
from otel_torchdist.capture.tensors.numerics import NumericsObserver
from otel_torchdist.capture.tensors.observed import ObservedCalls
from otel_torchdist.capture.tensors.statistics import checksum_of, extremes_of, moments_of
from otel_torchdist.config import NumericsMode
from otel_torchdist.tape.records.numerics import checksum_word, mix_checksum, sum_checksums
from tests.support.devices.simulated_cuda import MAIN_STREAM, SimulatedCuda
from tests.support.ranks.rank import own_tape, part_of, say, start_capture
from tests.support.waiting import until

SLOTS = 6
MS = 1_000_000
warnings.simplefilter("ignore")
capture = start_capture(observers=Observers(numerics=NumericsObserver(NumericsMode.ALL, 1), compare_parameters=1))
dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
cuda = SimulatedCuda(capture, Path(sys.argv[1]))
cuda.slots = SLOTS
cuda.compute()
cuda.device.use_stream(MAIN_STREAM)
tape = own_tape(capture)
seen: dict[int, Any] = {}


def read() -> list[Any]:
    """Return the known numerics of each operation, in order."""
    for numerics in tape.poll().numerics:
        seen[numerics.number] = numerics
    return [seen[number] for number in sorted(seen)]


def facts_of(found: Any) -> list[Any]:
    """Return the fields of a record."""
    numbers = (found.smallest, found.largest, found.mean, found.norm, found.zero_share, found.subnormal_share)
    return [*numbers, found.input_checksum, found.output_checksum]


def expected_of(*hosts: torch.Tensor) -> list[Any]:
    """Return the numerics of the same values on the host."""
    extremes, moments, checksum = extremes_of(hosts), moments_of(hosts), checksum_word(checksum_of(hosts))
    shares = (moments.zero_share, moments.subnormal_share)
    return [extremes.smallest, extremes.largest, moments.mean, moments.norm, *shares, checksum, checksum]


def waits() -> None:
    """Call functions that wait for the device, which raises: the other parts call none of them."""
    tensor, refused = cuda.on_device(torch.ones(9)), list[str]()
    for name, call in {
        "item": lambda: tensor.sum().item(),
        "nonzero": lambda: tensor.nonzero(),
        "mask": lambda: tensor[tensor > 0],
        "to_host": lambda: tensor.cpu(),
        "from_host": lambda: tensor.copy_(torch.zeros(9)),
    }.items():
        try:
            call()
        except Exception:
            refused.append(name)
    say(part="waits", refused=refused)


def values() -> None:
    """Each type of numbers, also misaligned, transposed and large."""
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        whole = torch.randn(70_001).to(dtype)
        whole[::7] = 0
        for host in (whole[:5], whole, whole[1:], whole[:70_000].view(70, 1_000).t()):
            before = len(read())
            dist.all_reduce(cuda.on_device(host))
            until(lambda before=before: [one for one in read()[before:] if one.output_checksum is not None], 20.0)
            say(part="values", found=facts_of(read()[-1]), expected=expected_of(host))


def in_order() -> None:
    """Examine values behind a running kernel, while the program overwrites its tensors."""
    host = torch.tensor([1.0, float("nan"), 2.0])
    stuck = cuda.device.launch(MAIN_STREAM, None)
    before = len(read())
    tensor = cuda.on_device(host)
    dist.all_reduce(tensor)
    tensor.zero_()
    gone = weakref.ref(tensor)
    del tensor
    early = [(one.is_pending, one.is_finite) for one in read()[before:]]
    asked = cuda.device.asked
    until(lambda: cuda.device.asked > asked + 3, 20.0)
    still = [(one.is_pending, one.is_finite) for one in read()[before:]]
    cuda.device.release(stuck)
    until(lambda: not read()[-1].is_pending, 20.0)
    until(lambda: read()[-1].output_checksum is not None or read()[-1].unseen_output is not None, 20.0)  # its slot
    say(part="in_order", early=early, still=still, late=read()[-1].is_finite, is_held=gone() is not None)


def too_many() -> None:
    """Examine more operations than there are slots, then more when slots are free again."""
    stuck = cuda.device.launch(MAIN_STREAM, None)
    before = len(read())
    for _ in range(2 * SLOTS):
        dist.all_reduce(cuda.tensor())
    cuda.device.release(stuck)
    until(lambda: not any(one.is_pending for one in read()), 20.0)
    cuda.until_over()
    full = [(one.is_finite, one.unseen) for one in read()[before:]]
    dist.all_reduce(cuda.tensor())
    until(lambda: not read()[-1].is_pending, 20.0)
    say(part="too_many", full=full, later=(read()[-1].is_finite, read()[-1].unseen))


def in_graph() -> None:
    """While the stream is captured."""
    cuda.device.capturing.add(MAIN_STREAM)
    dist.all_reduce(cuda.tensor())
    cuda.device.capturing.clear()
    found = read()[-1]
    say(part="in_graph", unseen=found.unseen, output=found.unseen_output, is_finite=found.is_finite)


def asynchronous() -> None:
    """Wait for outputs, or drop them."""
    tensor = cuda.on_device(torch.ones(9))
    work: Any = dist.all_reduce(tensor, async_op=True)
    before = read()[-1].output_checksum
    work.wait()
    until(lambda: read()[-1].output_checksum is not None, 20.0)
    found = read()[-1].output_checksum
    work, gone = None, weakref.ref(work)
    dist.barrier()
    is_equal = found == checksum_word(checksum_of([torch.ones(9)]))
    say(part="asynchronous", before=before, is_equal=is_equal, is_held=gone() is not None)


def odd_inputs() -> None:
    """Send tensors without statistics among others."""
    sends: list[torch.Tensor] = [
        torch.ones(4).to(torch.float8_e4m3fn), torch.ones(4, dtype=torch.int64), torch.ones(0), torch.ones(8)[::2],
    ]  # fmt: skip
    found: list[Any] = []
    for host in sends:
        before = len(read())
        dist.all_reduce(cuda.on_device(host))
        until(lambda before=before: len(read()) > before, 20.0)
        last = read()[-1]
        until(lambda: read()[-1].output_checksum is not None or read()[-1].unseen_output is not None, 20.0)
        last = read()[-1]
        found.append((str(host.dtype), last.is_finite, last.unseen, last.unseen_output))
    say(part="odd_inputs", found=found)


def mixed_devices() -> None:
    """Tensors of one operation on two devices, whose results could not be put into one row."""
    both = [cuda.on_device(torch.ones(4), device) for device in (0, 1)]
    found = eligible.select_inputs(both)
    say(
        part="mixed_devices", described=len(found.described), unseen=found.unseen, output=eligible.why_no_checksum(both)
    )


def parameters() -> None:
    """Compare a replica's parameters before a step that changes them."""
    hosts = [torch.randn(300), torch.randn(3, 70).t(), torch.randn(1_000).half(), torch.randn(5), torch.ones(())]
    expected = sum_checksums([mix_checksum(checksum_of([host]), salt) for salt, host in enumerate(hosts)])
    tensors = [cuda.on_device(host) for host in hosts]  # with the same memory
    observed: Any = part_of(capture, ObservedCalls)
    observed._replicas._models.learn(None, dist.group.WORLD, tensors)
    parameter = torch.zeros(1, requires_grad=True)
    parameter.grad = torch.ones(1)
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    optimizer.register_step_post_hook(lambda *_: [tensor.zero_() for tensor in tensors])
    mark_step()
    stuck = cuda.device.launch(MAIN_STREAM, None)
    optimizer.step()
    early = [one.output_checksum for one in read() if one.parameters is not None]
    cuda.device.release(stuck)
    until(lambda: [one for one in read() if one.parameters is not None and one.output_checksum is not None], 20.0)
    [found] = [one for one in read() if one.parameters is not None]
    is_equal = (found.output_checksum, found.parameters.sums) == expected
    say(part="parameters", early=early, is_equal=is_equal, count=found.parameters.count)


def device_fails() -> None:
    """The device returns errors from now on."""
    cuda.device.failure = "cudaErrorLaunchFailure"
    for _ in range(3):
        dist.all_reduce(cuda.tensor())
    say(part="device_fails", found=[(one.is_finite, one.unseen) for one in read()[-3:]])


parts: tuple[Callable[[], None], ...] = (
    waits, values, in_order, too_many, in_graph, asynchronous, odd_inputs, mixed_devices, parameters, device_fails,
)  # fmt: skip
for part in parts:
    part()
say(part="threads", queried_by=sorted(cuda.device.queried_by))
cuda.close()
