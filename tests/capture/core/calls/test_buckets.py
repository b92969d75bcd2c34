"""DDP's buckets are counted by turn and size, and no number is given where these do not agree."""

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
    """Stands for a model."""


@pytest.fixture
def buckets(memory: Path) -> Iterator[Buckets]:
    """The buckets of a group, whose model is not known yet."""
    recorder = Recorder(memory, 0, 2, 1024)
    new_group: Any = ProcessGroup
    process_group = new_group(0, 2)
    group = Groups().learn(recorder, process_group, (0, 1), 0)
    yield Buckets(group.recorder, group.native)
    recorder.tape.close()


@pytest.fixture
def replica() -> Iterator[DistributedDataParallel]:
    """A model of two parameters that DDP trains in a group of this process alone."""
    dist.init_process_group("fake", rank=0, world_size=1, store=HashStore())
    yield DistributedDataParallel(torch.nn.Linear(10, 10))
    dist.destroy_process_group()


def numbers(buckets: Buckets, *sizes: int) -> list[int]:
    """The numbers, from 1, that calls of these sizes get; 0 for none."""
    tails = [buckets.put_label(PAYLOAD_TAIL.pack(size, *[0] * 11)) for size in sizes]
    found = [unpack_label(*LABEL.unpack_from(tail, LABEL_OFFSET)) for tail in tails]
    assert {label for label, piece in found if piece} <= {buckets.label}
    return [piece for _, piece in found]


def test_in_turn(buckets: Buckets) -> None:
    """Buckets of one size are distinguished, calls of other sizes are none, and a forward begins anew."""
    model = Model()
    buckets.learn(model, SIZES)
    assert numbers(buckets, 400, 12, 400, 800, 400) == [1, 0, 2, 3, 0]
    buckets.begin()
    assert numbers(buckets, 400) == [1]


def test_out_of_turn(buckets: Buckets) -> None:
    """After a call of a bucket's size that was not that bucket, nothing is certain until the next forward."""
    model = Model()
    buckets.learn(model, SIZES)
    assert numbers(buckets, 800, 400, 400, 800) == [0, 0, 0, 0]
    buckets.learn(model, (800, 400))
    assert numbers(buckets, 800, 400) == [1, 2]


def test_two_models(buckets: Buckets) -> None:
    """Two models in one group are not distinguished; after the first has been freed, a new one is."""
    first = Model()
    buckets.learn(first, SIZES)
    del first
    second = Model()
    assert not buckets.is_of(second)
    buckets.learn(second, (400,))
    assert numbers(buckets, 400) == [1]
    third = Model()
    buckets.learn(third, SIZES)
    assert buckets.is_of(second) and buckets.is_of(third)
    assert numbers(buckets, 400) == [0]


def test_parameters_of_the_bucket_in_turn(buckets: Buckets, replica: DistributedDataParallel) -> None:
    """A message of its size has the parameters in it; another size, one behind the last, and one out of turn none."""

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
    buckets.begin()
    assert numbers(buckets, 400) == [0]
    assert found(400) == found(40) == ""
