"""Hooks into private parts of torch: they come and go, and what this torch lacks is off."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from pkgutil import resolve_name
from typing import Any

import pytest

from otel_torchdist.capture.core.thread_labels import ThreadLabels
from otel_torchdist.capture.core.torch_api import Patches
from otel_torchdist.capture.parts.labels import LabelledParts

UNITS, SHARDED = "torch.distributed.fsdp._fully_shard._fsdp_param_group", "torch.distributed.fsdp._runtime_utils"
STAGE, SCHEDULES = "torch.distributed.pipelining.stage", "torch.distributed.pipelining.schedules"
PARALLEL, MESHES = "torch.nn.parallel.distributed", "torch.distributed.device_mesh"
"""Imported by the tests that need them: it takes a second, which all processes that collect tests would spend."""
HOOKED = (
    (f"{UNITS}:FSDPParamGroup", "unshard"),
    (f"{UNITS}:FSDPParamGroup", "post_backward"),
    (SHARDED, "_unshard"),
    (SHARDED, "_reduce_grad"),
    ("torch.distributed.fsdp.fully_sharded_data_parallel", "_unshard"),
    (f"{STAGE}:_PipelineStageBase", "get_fwd_send_ops"),
    (f"{STAGE}:_PipelineStageBase", "get_fwd_recv_ops"),
    (f"{STAGE}:_PipelineStageBase", "get_bwd_send_ops"),
    (f"{STAGE}:_PipelineStageBase", "get_bwd_recv_ops"),
    (SCHEDULES, "_batch_p2p"),
    (f"{PARALLEL}:DistributedDataParallel", "_pre_forward"),
    (f"{MESHES}:DeviceMesh", "_init_process_groups"),
    (f"{MESHES}:DeviceMesh", "from_group"),
)
PARTS = (
    ("FSDP units", f"{UNITS}:FSDPParamGroup", "post_backward", {"unshard"}),
    ("FSDP units", SHARDED, "_reduce_grad", {"_unshard"}),
    (
        "pipeline stages",
        f"{STAGE}:_PipelineStageBase",
        "get_bwd_send_ops",
        {name for _, name in HOOKED if "_ops" in name},
    ),
    ("pipeline stages", SCHEDULES, "_batch_p2p", set[str]()),
    ("DDP buckets", f"{PARALLEL}:DistributedDataParallel", "_pre_forward", set[str]()),
    ("dimensions of device meshes", f"{MESHES}:DeviceMesh", "_init_process_groups", {"from_group"}),
)
"""What is left out without one of its functions, that, and the other functions that are then left alone."""


@pytest.fixture
def patches() -> Iterator[Patches]:
    """What is replaced, which is restored after the test."""
    patches = Patches()
    yield patches
    patches.close()


@pytest.fixture
def parts() -> LabelledParts:
    """The hooks, not in place yet, in a process without groups."""
    return LabelledParts(ThreadLabels(None), lambda group: None)


def current() -> dict[tuple[str, str], Any]:
    """What stands in the hooked places."""
    return {(owner, name): vars(resolve_name(owner)).get(name) for owner, name in HOOKED}


def test_everything_is_put_back(parts: LabelledParts, patches: Patches) -> None:
    """This torch has all of it, and each function is the same object afterwards as it was before."""
    before = current()
    assert None not in before.values()
    parts.hook(patches)
    hooked = current()
    assert [place for place in before if hooked[place] is before[place]] == []
    parts.unhook()
    patches.close()
    assert current() == before


@pytest.mark.parametrize("arguments", [(), ("layout",)], ids=len)
def test_arguments_are_passed_on(parts: LabelledParts, patches: Patches, arguments: tuple[object, ...]) -> None:
    """Where torch calls a static method on its class, not on a mesh, it gets what it is given, and may refuse it."""
    meshes = resolve_name(f"{MESHES}:DeviceMesh")

    def refusal() -> tuple[type[Exception], str]:
        with pytest.raises(Exception) as refused:
            meshes._init_process_groups(*arguments)
        return refused.type, str(refused.value)

    without_us = refusal()
    parts.hook(patches)
    assert refusal() == without_us


def test_nothing_is_hooked_when_it_is_imported_after_the_end(parts: LabelledParts, patches: Patches) -> None:
    """A module that is imported after we were switched off stays as it is."""
    parts.hook(patches)
    parts.unhook()
    patches.close()
    before = current()
    parts.imported(sys.modules["torch.distributed.pipelining.schedules"])
    assert current() == before


@pytest.mark.parametrize(("what", "owner", "missing", "others"), PARTS)
def test_what_is_missing_is_left_out(
    parts: LabelledParts,
    patches: Patches,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    what: str,
    owner: str,
    missing: str,
    others: set[str],
) -> None:
    """A torch that lacks a function: one line says what is not shown, and all other parts are there."""
    monkeypatch.delattr(resolve_name(owner), missing)
    before = current()
    with caplog.at_level(logging.INFO, "otel_torchdist"):
        parts.hook(patches)
    assert caplog.messages == [f"operations are shown without their {what}: this torch has no {missing}"]
    hooked = current()
    alone = {name for place, name in before if hooked[place, name] is before[place, name]}
    assert alone - {missing, "_unshard"} == others - {missing, "_unshard"}
