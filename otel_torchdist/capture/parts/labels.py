"""Labels of calls: patches torch's libraries for parallel training, once their modules are imported.

The patched functions are private to torch. If this version of torch lacks one, a log line says which labels are off.
The other labels work.
"""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch.distributed import ProcessGroup

from otel_torchdist import guard
from otel_torchdist.capture.core.part import SessionPart
from otel_torchdist.capture.core.torch_api import Patches, PatchTargets, resolve_group
from otel_torchdist.capture.parts import fsdp, pipeline
from otel_torchdist.capture.parts.ddp import DdpBuckets
from otel_torchdist.capture.parts.fsdp import FlatParameters, ParamGroups
from otel_torchdist.capture.parts.pipeline import Stages
from otel_torchdist.capture.upstream import training
from otel_torchdist.system.when_imported import when_imported

if TYPE_CHECKING:
    from types import ModuleType

    from otel_torchdist.capture.core.calls.call import GroupState
    from otel_torchdist.capture.core.thread_labels import ThreadLabels


class Meshes:
    """Recorder of the dimensions of device meshes, with their groups, when a mesh creates or chooses the groups.

    Most groups of a mesh are created for it and described as `mesh_tp`. But dimensions as large as the world use the
    default group.

    A slice of a mesh uses the groups of the mesh, and `from_group` makes a mesh of existing groups. `__init__` is not
    patched: a mesh may create the first group, which switches us on, and Dynamo traces `__init__`.
    """

    def __init__(self, find_group: Callable[[ProcessGroup], GroupState | None]) -> None:
        """Initialize without patches. `find_group` returns the state of a group."""
        self._find_group = find_group

    def targets(self) -> PatchTargets:
        """Return the attributes to patch."""
        return [(symbol.holder, symbol) for symbol in (training.MESH_GROUPS, training.MESH_FROM_GROUP)]

    def hook(self, patches: Patches) -> None:
        """Patch the targets."""
        for (owner, name), make in zip(self.targets(), (self._init, self._from_group), strict=True):
            patches.replace(owner, name, functools.partial(make, mesh_class=owner))

    def _init(self, original: Callable[..., Any], mesh_class: Any) -> Callable[..., Any]:
        signature = inspect.signature(original)
        takes_mesh = next(iter(signature.parameters), "") == "self"  # a static method in newer versions

        @functools.wraps(original)
        def init_process_groups(*args: Any, **kwargs: Any) -> Any:
            has_mesh = bool(args) and isinstance(args[0], mesh_class)
            arguments = args[1:] if has_mesh and not takes_mesh else args
            result = original(*arguments, **kwargs)
            try:
                mesh = args[0] if has_mesh else None
                bound = signature.bind(*arguments, **kwargs).arguments
                names = bound.get("mesh_dim_names") or getattr(mesh, "mesh_dim_names", None)
                groups = result if result is not None else getattr(mesh, training.MESH_GROUP_NAMES.name, None)
                self._learn(names or (), groups or ())
            except Exception as error:
                guard.report("mesh dimensions", error)
            return result

        return init_process_groups

    def _from_group(self, original: Callable[..., Any], mesh_class: Any) -> Callable[..., Any]:
        @functools.wraps(original)
        def from_group(*args: Any, **kwargs: Any) -> Any:
            arguments = args[1:] if args and isinstance(args[0], mesh_class) else args  # a static method
            mesh = original(*arguments, **kwargs)
            try:
                self._learn(mesh.mesh_dim_names or (), training.MESH_GROUP_NAMES.of(mesh, ()))
            except Exception as error:
                guard.report("mesh dimensions", error)
            return mesh

        return from_group

    def _learn(self, dimensions: Any, groups: Any) -> None:
        for dimension, name in zip(dimensions, groups, strict=False):
            group = resolve_group(name)
            state = self._find_group(group) if isinstance(group, ProcessGroup) else None
            if state is not None:
                state.add_dimension(str(dimension))


class CallLabels(SessionPart):
    """The session part that labels calls."""

    def __init__(self, labels: ThreadLabels, find_group: Callable[[ProcessGroup], GroupState | None]) -> None:
        """Initialize without patches.

        Args:
            labels: The labels of threads.
            find_group: Returns the state of a group, or None if nothing can be recorded.
        """
        self._patches: Patches | None = None
        self._meshes = Meshes(find_group)
        self._ddp_buckets = DdpBuckets(find_group)
        units, flat, stages = ParamGroups(labels), FlatParameters(labels), Stages(labels)
        self._by_module: dict[
            str, tuple[Callable[[ModuleType], PatchTargets], Callable[[Patches, ModuleType], None]]
        ] = {
            fsdp.PARAM_GROUPS: (units.targets, units.hook),
            fsdp.FLAT_PARAMETERS: (flat.targets, flat.hook),
            **{name: (_no_targets, flat.hook_importer) for name in fsdp.IMPORTERS},
            pipeline.STAGES: (stages.targets, stages.hook),
            pipeline.SCHEDULES: (stages.schedule_targets, stages.hook_schedules),
        }

    def hook(self, patches: Patches) -> None:
        """Patch the imported modules now, and other modules when they are imported."""
        self._patches = patches
        if _has_all(self._meshes.targets()):
            self._meshes.hook(patches)
        if _has_all(self._ddp_buckets.targets()):
            self._ddp_buckets.hook(patches)
        reference: weakref.ref[CallLabels] = weakref.ref(self)
        for name in self._by_module:
            when_imported(name, functools.partial(_imported, reference))

    def unhook(self) -> None:
        """Patch no modules any more."""
        self._patches = None

    def imported(self, module: ModuleType) -> None:
        """Patch an imported module."""
        targets, hook = self._by_module[module.__name__]
        patches = self._patches
        if patches is not None and not patches.are_closed and _has_all(targets(module)):
            hook(patches, module)


def _no_targets(_: ModuleType) -> PatchTargets:
    return ()


def _imported(reference: weakref.ref[CallLabels], module: ModuleType) -> None:
    with guard.guarded("labels"):
        call_labels = reference()
        if call_labels is not None:
            call_labels.imported(module)


def _has_all(targets: PatchTargets) -> bool:
    """Return whether this torch has all attributes to patch. Otherwise report the first that is missing."""
    missing = next((symbol for owner, symbol in targets if not hasattr(owner, symbol.name)), None)
    if missing is not None:
        missing.report()
    return missing is None
