"""Patches of torch's private functions are removed without a trace, and a missing function disables only its labels."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from pkgutil import resolve_name
from typing import Any

import pytest

from otel_torchdist.capture.core.thread_labels import ThreadLabels
from otel_torchdist.capture.core.torch_api import Patches
from otel_torchdist.capture.parts.labels import CallLabels

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
    """Patches that are restored after the test."""
    patches = Patches()
    yield patches
    patches.close()


@pytest.fixture
def parts() -> CallLabels:
    """The labels without hooks, in a process without groups."""
    return CallLabels(ThreadLabels(None), lambda group: None)


def current() -> dict[tuple[str, str], Any]:
    """Return the current values of the patched attributes."""
    return {(owner, name): vars(resolve_name(owner)).get(name) for owner, name in HOOKED}


def test_everything_is_put_back(parts: CallLabels, patches: Patches) -> None:
    """This torch has all patched functions, and each is the same object afterwards as before."""
    before = current()
    assert None not in before.values()
    parts.hook(patches)
    hooked = current()
    assert [place for place in before if hooked[place] is before[place]] == []
    parts.unhook()
    patches.close()
    assert current() == before


@pytest.mark.parametrize("arguments", [(), ("layout",)], ids=len)
def test_arguments_are_passed_on(parts: CallLabels, patches: Patches, arguments: tuple[object, ...]) -> None:
    """A static method that torch calls on the class, not on a mesh, receives its arguments unchanged."""
    meshes = resolve_name(f"{MESHES}:DeviceMesh")

    def refusal() -> tuple[type[Exception], str]:
        with pytest.raises(Exception) as refused:
            meshes._init_process_groups(*arguments)
        return refused.type, str(refused.value)

    without_us = refusal()
    parts.hook(patches)
    assert refusal() == without_us


def test_nothing_is_hooked_when_it_is_imported_after_the_end(parts: CallLabels, patches: Patches) -> None:
    """A module that is imported after labels were switched off is not patched."""
    parts.hook(patches)
    parts.unhook()
    patches.close()
    before = current()
    parts.imported(sys.modules["torch.distributed.pipelining.schedules"])
    assert current() == before


@pytest.mark.parametrize(("what", "owner", "missing", "others"), PARTS)
def test_what_is_missing_is_left_out(
    parts: CallLabels,
    patches: Patches,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    what: str,
    owner: str,
    missing: str,
    others: set[str],
) -> None:
    """If torch lacks a function, one log line says which labels are missing. The other labels work."""
    monkeypatch.delattr(resolve_name(owner), missing)
    before = current()
    with caplog.at_level(logging.INFO, "otel_torchdist"):
        parts.hook(patches)
    symbol = f"{owner.replace(':', '.')}.{missing}"
    assert caplog.messages == [f"this torch has no {symbol}: operations are shown without their {what}"]
    hooked = current()
    alone = {name for place, name in before if hooked[place, name] is before[place, name]}
    assert alone - {missing, "_unshard"} == others - {missing, "_unshard"}
