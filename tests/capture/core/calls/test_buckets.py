"""DDP's buckets are numbered by order and size. A call that does not match gets no number."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.testing._internal.distributed.fake_pg  # registers the backend `fake`
from torch.distributed import HashStore, ProcessGroup  # pyright: ignore[reportPrivateImportUsage]  # as torch's manual has it
from torch.nn.parallel import DistributedDataParallel

from otel_torchdist.capture.core.calls.buckets import Buckets
from otel_torchdist.capture.core.groups.groups import Groups
from otel_torchdist.capture.core.recorder import Recorder
from otel_torchdist.model.names import unpack_label
from otel_torchdist.tape.layout import LABEL, LABEL_OFFSET, PAYLOAD_TAIL

SIZES = (400, 400, 800)


class Model:
    """Stand-in for a model."""


@pytest.fixture
def buckets(memory: Path) -> Iterator[Buckets]:
    """The buckets of a group without a known model."""
    recorder = Recorder(memory, 0, 2, 1024)
    new_group: Any = ProcessGroup
    process_group = new_group(0, 2)
    group = Groups().register(recorder, process_group, (0, 1), 0)
    yield Buckets(group.recorder, group.native)
    recorder.tape.close()


@pytest.fixture
def replica() -> Iterator[DistributedDataParallel]:
    """A model of two parameters that DDP trains in a group of one rank."""
    dist.init_process_group("fake", rank=0, world_size=1, store=HashStore())
    yield DistributedDataParallel(torch.nn.Linear(10, 10))
    dist.destroy_process_group()


def numbers(buckets: Buckets, *sizes: int) -> list[int]:
    """Return the numbers, from 1, of calls with these sizes; 0 for none."""
    tails = [buckets.put_label(PAYLOAD_TAIL.pack(size, *[0] * 11)) for size in sizes]
    found = [unpack_label(*LABEL.unpack_from(tail, LABEL_OFFSET)) for tail in tails]
    assert {label for label, piece in found if piece} <= {buckets.label}
    return [piece for _, piece in found]


def test_in_turn(buckets: Buckets) -> None:
    """Buckets of equal size get different numbers, calls of other sizes get none, and a forward restarts the count."""
    model = Model()
    buckets.learn(model, SIZES)
    assert numbers(buckets, 400, 12, 400, 800, 400) == [1, 0, 2, 3, 0]
    buckets.restart()
    assert numbers(buckets, 400) == [1]


def test_out_of_turn(buckets: Buckets) -> None:
    """After a call out of order, no call gets a number until the next forward."""
    model = Model()
    buckets.learn(model, SIZES)
    assert numbers(buckets, 800, 400, 400, 800) == [0, 0, 0, 0]
    buckets.learn(model, (800, 400))
    assert numbers(buckets, 800, 400) == [1, 2]


def test_two_models(buckets: Buckets) -> None:
    """A model that replaces a freed one is counted. Two live models that share a group are not."""
    first = Model()
    buckets.learn(first, SIZES)
    del first
    second = Model()
    assert not buckets.knows(second)
    buckets.learn(second, (400,))
    assert numbers(buckets, 400) == [1]
    third = Model()
    buckets.learn(third, SIZES)
    assert buckets.knows(second) and buckets.knows(third)
    assert numbers(buckets, 400) == [0]


def test_parameters_of_the_bucket_in_turn(buckets: Buckets, replica: DistributedDataParallel) -> None:
    """The parameters are known for a message with the next bucket's size, and unknown for any other."""

    def found(size: int) -> str:
        parameters = buckets.parameters_of_next(size)
        return "" if parameters is None else str(parameters)

    buckets.learn(replica, (40, 400))
    assert "bias" in found(40) and "weight" not in found(40)
    assert found(400) == ""
    assert numbers(buckets, 40) == [1]
    assert "weight" in found(400)
    assert numbers(buckets, 400) == [2]
    assert found(400) == ""
    buckets.restart()
    assert numbers(buckets, 400) == [0]
    assert found(400) == found(40) == ""
