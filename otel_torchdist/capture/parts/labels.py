"""Labels of calls: hooks into the libraries for parallel training, each as soon as its module is imported.

All of it is private to torch. A part whose functions this version lacks is off, which one line says, and the others
work.
"""

from __future__ import annotations

import functools
import inspect
import logging
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch.distributed import ProcessGroup, device_mesh

from otel_torchdist import guard
from otel_torchdist.capture.core.part import SessionPart
from otel_torchdist.capture.core.torch_api import Patches, Replaced, resolve_group
from otel_torchdist.capture.parts import fsdp, pipeline
from otel_torchdist.capture.parts.ddp import Replicated
from otel_torchdist.capture.parts.fsdp import FlatParameters, ParamGroups
from otel_torchdist.capture.parts.pipeline import Stages
from otel_torchdist.system.when_imported import when_imported

if TYPE_CHECKING:
    from types import ModuleType

    from otel_torchdist.capture.core.calls.call import GroupState
    from otel_torchdist.capture.core.thread_labels import ThreadLabels
    from otel_torchdist.capture.core.torch_api import Patches, Replaced


class Meshes:
    """Learns which groups are for which dimensions of device meshes, when a mesh creates or chooses them.

    Most groups of a mesh are created for it and described as `mesh_tp`. But a dimension that is as large as the world
    gets no group of its own: it is the default group, and several dimensions may be.

    A slice of a mesh has the groups of that, and `from_group` makes a mesh of groups that are there. `__init__` itself
    is left alone: a mesh may be what creates the first group, and so what switches us on, and Dynamo traces it.
    """

    def __init__(self, meet: Callable[[ProcessGroup], GroupState | None]) -> None:
        """Name groups, which `meet` finds."""
        self._meet = meet

    def replaced(self) -> Replaced:
        """What is replaced."""
        mesh_class = getattr(device_mesh, "DeviceMesh", None)
        return [(mesh_class, "_init_process_groups"), (mesh_class, "from_group")]

    def hook(self, patches: Patches) -> None:
        """Replace it."""
        for (owner, name), make in zip(self.replaced(), (self._init, self._from_group), strict=True):
            patches.replace(owner, name, functools.partial(make, mesh_class=owner))

    def _init(self, original: Callable[..., Any], mesh_class: Any) -> Callable[..., Any]:
        signature = inspect.signature(original)
        takes_mesh = next(iter(signature.parameters), "") == "self"  # it is static in newer versions

        @functools.wraps(original)
        def init_process_groups(*args: Any, **kwargs: Any) -> Any:
            has_mesh = bool(args) and isinstance(args[0], mesh_class)
            given = args[1:] if has_mesh and not takes_mesh else args
            result = original(*given, **kwargs)
            try:
                mesh = args[0] if has_mesh else None
                bound = signature.bind(*given, **kwargs).arguments
                names = bound.get("mesh_dim_names") or getattr(mesh, "mesh_dim_names", None)
                groups = result if result is not None else getattr(mesh, "_dim_group_names", None)
                self._learn(names or (), groups or ())
            except Exception as error:
                guard.report("mesh dimensions", error)
            return result

        return init_process_groups

    def _from_group(self, original: Callable[..., Any], mesh_class: Any) -> Callable[..., Any]:
        @functools.wraps(original)
        def from_group(*args: Any, **kwargs: Any) -> Any:
            given = args[1:] if args and isinstance(args[0], mesh_class) else args  # it is static
            mesh = original(*given, **kwargs)
            try:
                self._learn(mesh.mesh_dim_names or (), mesh._dim_group_names)
            except Exception as error:
                guard.report("mesh dimensions", error)
            return mesh

        return from_group

    def _learn(self, dimensions: Any, groups: Any) -> None:
        for dimension, name in zip(dimensions, groups, strict=False):
            group = resolve_group(name)
            state = self._meet(group) if isinstance(group, ProcessGroup) else None
            if state is not None:
                state.add_dimension(str(dimension))


_logger = logging.getLogger("otel_torchdist")


class LabelledParts(SessionPart):
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
    """Return whether this torch has all that a part needs; logs a line if it has not."""
    missing = [name for owner, name in replaced if not hasattr(owner, name)]
    if missing:
        _logger.info("operations are shown without their %s: this torch has no %s", what, ", ".join(missing))
    return not missing
