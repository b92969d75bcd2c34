"""Labels calls with the FSDP unit, the module whose parameters they gather or whose gradients they reduce.

In `fully_shard` a unit is an `FSDPParamGroup`. Its methods gather and reduce on all paths: in the hooks of its module,
in a prefetch, or in a call of the program. In the older FSDP a unit is a flat parameter.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Final

from otel_torchdist.model.names import LabelKind, LabelName

if TYPE_CHECKING:
    from types import ModuleType

    from otel_torchdist.capture.core.recorder import Recorder
    from otel_torchdist.capture.core.thread_labels import ThreadLabels
    from otel_torchdist.capture.core.torch_api import Patches, PatchTargets

PARAM_GROUPS: Final = "torch.distributed.fsdp._fully_shard._fsdp_param_group"
FLAT_PARAMETERS: Final = "torch.distributed.fsdp._runtime_utils"
IMPORTERS: Final = (
    "torch.distributed.fsdp._unshard_param_utils",
    "torch.distributed.fsdp.fully_sharded_data_parallel",
)
"""Modules that import `_unshard` by name. Modules that were imported before ours hold the original."""
MAX_UNIT: Final = 200
"""Maximum length of a unit's name. The name of a unit of several modules lists all of them."""
MAX_UNITS: Final = 4096
"""Maximum number of units with a cached label word."""
_UNSHARD: Final = "_unshard"


class ParamGroups:
    """Labels for calls of `fully_shard`.

    Each unit runs several times a step, with cold CPU caches. So label words are cached by unit name, to run little
    code.
    """

    def __init__(self, labels: ThreadLabels) -> None:
        self._labels = labels
        self._words: dict[str, int] = {}
        self._recorder: Recorder | None = None

    def targets(self, module: ModuleType) -> PatchTargets:
        """Return the attributes to patch in the module."""
        return [(getattr(module, "FSDPParamGroup", None), name) for name in ("unshard", "post_backward")]

    def hook(self, patches: Patches, module: ModuleType) -> None:
        """Patch the targets."""
        for owner, name in self.targets(module):
            patches.replace(owner, name, lambda original: self._labels.around(original, self._word_of))

    def _word_of(self, group: Any, *_: Any, **__: Any) -> int:
        """Return the label word of an `FSDPParamGroup`. Its name is '' for the root, None before the first forward."""
        unit = group._module_fqn
        if self._labels.recorder is self._recorder:
            word = self._words.get(unit)
            if word is not None:
                return word
        return self._find_word(unit)

    def _find_word(self, unit: Any) -> int:
        if self._labels.recorder is not self._recorder:
            self._recorder = self._labels.recorder
            self._words = {}
        if unit is None:
            return 0
        name = str(unit)[:MAX_UNIT]
        word = self._labels.word_of(LabelName(LabelKind.FSDP, unit=name))
        if word and len(self._words) < MAX_UNITS:
            self._words[unit] = word
        return word


class FlatParameters:
    """Labels for calls of the older FSDP."""

    def __init__(self, labels: ThreadLabels) -> None:
        self._labels = labels
        self._known: weakref.WeakKeyDictionary[Any, LabelName] = weakref.WeakKeyDictionary()

    def targets(self, module: ModuleType) -> PatchTargets:
        """Return the attributes to patch in the module."""
        return [(module, name) for name in (_UNSHARD, "_reduce_grad", "_reduce_grad_no_shard")]

    def hook(self, patches: Patches, module: ModuleType) -> None:
        """Patch the targets."""
        for owner, name in self.targets(module):
            patches.replace(owner, name, lambda original: self._labels.around(original, self._word_of))

    def hook_importer(self, patches: Patches, module: ModuleType) -> None:
        """Patch `_unshard` in a module that has imported it by name, unless it already holds our wrapper."""
        if not hasattr(getattr(module, _UNSHARD, None), "__wrapped__"):
            patches.replace(module, _UNSHARD, lambda original: self._labels.around(original, self._word_of))

    def _word_of(self, state: Any, handle: Any, *_: Any, **__: Any) -> int:
        return self._labels.word_of(self._unit_of(state, handle))

    def _unit_of(self, state: Any, handle: Any) -> LabelName | None:
        if not handle:
            return None
        label = self._known.get(handle)
        if label is None:
            unit = _module_of(handle.flat_param, state._exec_order_data.param_to_fqn)
            if unit is None:
                return None
            label = self._known[handle] = LabelName(LabelKind.FSDP, unit=unit[:MAX_UNIT])
        return label


def _module_of(flat_parameter: Any, names: Any) -> str | None:
    """Return the module of a flat parameter, '' for the root, or None before the first forward.

    Args:
        flat_parameter: Holds the names of its parameters relative to its module.
        names: The names of all parameters relative to the root, by flat parameter, or with `use_orig_params` by
            parameter.
    """
    for key in (flat_parameter, *(flat_parameter._params or ())):
        for name in names.get(key, ()):
            relative = next((fqn for fqn in flat_parameter._fqns if f".{name}".endswith(f".{fqn}")), None)
            return str(name).removesuffix(relative or "").rstrip(".")
    return None
