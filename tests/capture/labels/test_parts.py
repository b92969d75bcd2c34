"""Hooks into private parts of torch: they come and go, and what this torch lacks is off."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from torch.distributed import device_mesh
from torch.distributed.fsdp import _runtime_utils, fully_sharded_data_parallel
from torch.distributed.fsdp._fully_shard import _fsdp_param_group
from torch.distributed.pipelining import schedules, stage
from torch.nn.parallel import DistributedDataParallel

from otel_torchdist.capture.labels.parts import LabelledParts
from otel_torchdist.capture.thread_labels import ThreadLabels

HOOKED: tuple[tuple[Any, str], ...] = (
    (_fsdp_param_group.FSDPParamGroup, "unshard"),
    (_fsdp_param_group.FSDPParamGroup, "post_backward"),
    (_runtime_utils, "_unshard"),
    (_runtime_utils, "_reduce_grad"),
    (fully_sharded_data_parallel, "_unshard"),
    (stage._PipelineStageBase, "get_fwd_send_ops"),
    (stage._PipelineStageBase, "get_fwd_recv_ops"),
    (stage._PipelineStageBase, "get_bwd_send_ops"),
    (stage._PipelineStageBase, "get_bwd_recv_ops"),
    (schedules, "_batch_p2p"),
    (DistributedDataParallel, "_pre_forward"),
    (device_mesh.DeviceMesh, "_init_process_groups"),
    (device_mesh.DeviceMesh, "from_group"),
)
PARTS = (
    ("FSDP units", _fsdp_param_group.FSDPParamGroup, "post_backward", {"unshard"}),
    ("FSDP units", _runtime_utils, "_reduce_grad", {"_unshard"}),
    ("pipeline stages", stage._PipelineStageBase, "get_bwd_send_ops", {name for _, name in HOOKED if "_ops" in name}),
    ("pipeline stages", schedules, "_batch_p2p", set[str]()),
    ("DDP buckets", DistributedDataParallel, "_pre_forward", set[str]()),
    ("dimensions of device meshes", device_mesh.DeviceMesh, "_init_process_groups", {"from_group"}),
)
"""What is left out without one of its functions, that, and the other functions that are then left alone."""


@pytest.fixture
def parts() -> Iterator[LabelledParts]:
    """The hooks, not in place yet, in a process without groups."""
    parts = LabelledParts(ThreadLabels(None), lambda group: None)
    yield parts
    parts.unhook()


def current() -> dict[tuple[str, str], Any]:
    """What stands in the hooked places."""
    return {(getattr(owner, "__name__", ""), name): vars(owner).get(name) for owner, name in HOOKED}


def test_everything_is_put_back(parts: LabelledParts) -> None:
    """This torch has all of it, and each function is the same object afterwards as it was before."""
    before = current()
    assert None not in before.values()
    parts.hook()
    hooked = current()
    assert [place for place in before if hooked[place] is before[place]] == []
    parts.unhook()
    assert current() == before


def test_nothing_is_hooked_when_it_is_imported_after_the_end(parts: LabelledParts) -> None:
    """A module that is imported after we were switched off stays as it is."""
    parts.hook()
    parts.unhook()
    before = current()
    parts.imported(sys.modules["torch.distributed.pipelining.schedules"])
    assert current() == before


@pytest.mark.parametrize(("what", "owner", "missing", "others"), PARTS)
def test_what_is_missing_is_left_out(
    parts: LabelledParts,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    what: str,
    owner: Any,
    missing: str,
    others: set[str],
) -> None:
    """A torch that lacks a function: one line says what is not shown, and all other parts are there."""
    monkeypatch.delattr(owner, missing)
    before = current()
    with caplog.at_level(logging.INFO, "otel_torchdist"):
        parts.hook()
    assert caplog.messages == [f"operations are shown without their {what}: this torch has no {missing}"]
    hooked = current()
    alone = {name for place, name in before if hooked[place, name] is before[place, name]}
    assert alone - {missing, "_unshard"} == others - {missing, "_unshard"}
