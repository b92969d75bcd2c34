"""Dimensions of device meshes: which groups are for them.

Most groups of a mesh are created for it and described as `mesh_tp`. But a dimension that is as large as the world gets
no group of its own: it is the default group, and several dimensions may be.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch.distributed import ProcessGroup, device_mesh

from otel_torchdist import guard
from otel_torchdist.capture.torch_api import resolve_group

if TYPE_CHECKING:
    from otel_torchdist.capture.c10d.calls.call import GroupState
    from otel_torchdist.capture.torch_api import Patches, Replaced


class Meshes:
    """Learns which groups are for which dimensions, when a mesh creates or chooses them.

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
