"""Hooks into the libraries for parallel training, each as soon as its module is imported.

All of it is private to torch. A part whose functions this version lacks is off, which one line says, and the others
work.
"""

from __future__ import annotations

import functools
import logging
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

from torch.distributed import ProcessGroup

from otel_torchdist import guard
from otel_torchdist.capture.labels import fsdp, pipeline
from otel_torchdist.capture.labels.ddp import Replicated
from otel_torchdist.capture.labels.fsdp import FlatParameters, ParamGroups
from otel_torchdist.capture.labels.meshes import Meshes
from otel_torchdist.capture.labels.pipeline import Stages
from otel_torchdist.capture.part import Part
from otel_torchdist.capture.torch_api import Patches, Replaced
from otel_torchdist.when_imported import when_imported

if TYPE_CHECKING:
    from types import ModuleType

    from otel_torchdist.capture.c10d.calls.call import GroupState
    from otel_torchdist.capture.thread_labels import ThreadLabels

_logger = logging.getLogger("otel_torchdist")


class LabelledParts(Part):
    """What is labelled, and the hooks for it."""

    def __init__(self, labels: ThreadLabels, meet: Callable[[ProcessGroup], GroupState | None]) -> None:
        """Label the calls of threads; `meet` finds groups."""
        self._patches: Patches | None = None
        self._meshes = Meshes(meet)
        self._replicated = Replicated(meet)
        units, flat, stages = ParamGroups(labels), FlatParameters(labels), Stages(labels)
        self._parts: dict[str, tuple[str, Callable[[ModuleType], Replaced], Callable[[Patches, ModuleType], None]]] = {
            fsdp.PARAM_GROUPS: ("FSDP units", units.replaced, units.hook),
            fsdp.FLAT_PARAMETERS: ("FSDP units", flat.replaced, flat.hook),
            **{name: ("FSDP units", _nothing, flat.hook_importer) for name in fsdp.IMPORTERS},
            pipeline.STAGES: ("pipeline stages", stages.replaced, stages.hook),
            pipeline.SCHEDULES: ("pipeline stages", stages.replaced_in_schedules, stages.hook_schedules),
        }

    def hook(self, patches: Patches) -> None:
        """Label from now on, also what is imported later."""
        self._patches = patches
        if _has_all("dimensions of device meshes", self._meshes.replaced()):
            self._meshes.hook(patches)
        if _has_all("DDP buckets", self._replicated.replaced()):
            self._replicated.hook(patches)
        this: weakref.ref[LabelledParts] = weakref.ref(self)
        for name in self._parts:
            when_imported(name, functools.partial(_imported, this))

    def unhook(self) -> None:
        """Leave alone what is imported later."""
        self._patches = None

    def imported(self, module: ModuleType) -> None:
        """Hook a module that was imported now or before."""
        what, replaced, hook = self._parts[module.__name__]
        patches = self._patches
        if patches is not None and not patches.are_closed and _has_all(what, replaced(module)):
            hook(patches, module)


def _nothing(_: ModuleType) -> Replaced:
    return ()


def _imported(parts: weakref.ref[LabelledParts], module: ModuleType) -> None:
    with guard.guarded("labels"):
        this = parts()
        if this is not None:
            this.imported(module)


def _has_all(what: str, replaced: Replaced) -> bool:
    """Whether this torch has all that a part needs; logs a line if it has not."""
    missing = [name for owner, name in replaced if not hasattr(owner, name)]
    if missing:
        _logger.info("operations are shown without their %s: this torch has no %s", what, ", ".join(missing))
    return not missing
