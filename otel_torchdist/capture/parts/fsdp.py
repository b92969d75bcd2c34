"""Labels calls with the FSDP unit, the module whose parameters they gather or whose gradients they reduce.

In `fully_shard` a unit is an `FSDPParamGroup`. Its methods gather and reduce on all paths: in the hooks of its module,
in a prefetch, or in a call of the program. In the older FSDP a unit is a flat parameter.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Final

from otel_torchdist.capture.upstream import training
from otel_torchdist.model.names import LabelKind, LabelName

if TYPE_CHECKING:
    from types import ModuleType

    from otel_torchdist.capture.core.recorder import Recorder
    from otel_torchdist.capture.core.thread_labels import ThreadLabels
    from otel_torchdist.capture.core.torch_api import Patches, PatchTargets

PARAM_GROUPS: Final = training.UNIT_UNSHARD.module
FLAT_PARAMETERS: Final = training.FLAT_UNSHARD.module
IMPORTERS: Final = (
    training.FLAT_UNSHARD_BY_NAME.module,
    "torch.distributed.fsdp.fully_sharded_data_parallel",
)
"""Modules that import a patched function by name. Imported before the patch, they hold the original function."""
MAX_UNIT: Final = 200
"""Maximum length of a unit's name. The name of a unit of several modules lists all of them."""
MAX_UNITS: Final = 4096
"""Maximum number of units with a cached label word."""
_UNIT_NAME: Final = training.UNIT_NAME.name


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
        return [(symbol.holder, symbol) for symbol in (training.UNIT_UNSHARD, training.UNIT_REDUCE)]

    def hook(self, patches: Patches, module: ModuleType) -> None:
        """Patch the targets."""
        for owner, name in self.targets(module):
            patches.replace(owner, name, lambda original: self._labels.label_calls_of(original, self._word_of))

    def _word_of(self, group: Any, *_: Any, **__: Any) -> int:
        """Return the label word of an `FSDPParamGroup`. Its name is '' for the root, None before the first forward."""
        unit: Any = getattr(group, _UNIT_NAME, None)
        if self._labels.recorder is self._recorder:
            word = self._words.get(unit)
            if word is not None:
                return word
        return self._find_word(unit, group)

    def _find_word(self, unit: Any, group: Any) -> int:
        if self._labels.recorder is not self._recorder:
            self._recorder = self._labels.recorder
            self._words = {}
        if unit is None:
            training.UNIT_NAME.report_if_missing(group)
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
        self._labels_by_handle: weakref.WeakKeyDictionary[Any, LabelName] = weakref.WeakKeyDictionary()

    def targets(self, module: ModuleType) -> PatchTargets:
        """Return the attributes to patch in the module."""
        return [
            (module, symbol) for symbol in (training.FLAT_UNSHARD, training.FLAT_REDUCE, training.FLAT_REDUCE_WHOLE)
        ]

    def hook(self, patches: Patches, module: ModuleType) -> None:
        """Patch the targets."""
        for owner, name in self.targets(module):
            patches.replace(owner, name, lambda original: self._labels.label_calls_of(original, self._word_of))

    def hook_importer(self, patches: Patches, module: ModuleType) -> None:
        """Patch the function in a module that has imported it by name, unless it already holds our wrapper."""
        symbol = training.FLAT_UNSHARD_BY_NAME
        if not hasattr(getattr(module, symbol.name, None), "__wrapped__"):
            patches.replace(module, symbol, lambda original: self._labels.label_calls_of(original, self._word_of))

    def _word_of(self, state: Any, handle: Any, *_: Any, **__: Any) -> int:
        return self._labels.word_of(self._unit_of(state, handle))

    def _unit_of(self, state: Any, handle: Any) -> LabelName | None:
        if not handle:
            return None
        label = self._labels_by_handle.get(handle)
        if label is None:
            order = training.FLAT_ORDER.of(state)
            unit = _module_of(handle.flat_param, order.param_to_fqn) if order is not None else None
            if unit is None:
                return None
            label = self._labels_by_handle[handle] = LabelName(LabelKind.FSDP, unit=unit[:MAX_UNIT])
        return label


def _module_of(flat_parameter: Any, names: Any) -> str | None:
    """Return the module of a flat parameter, '' for the root, or None before the first forward.

    Args:
        flat_parameter: Holds the names of its parameters relative to its module.
        names: The names of all parameters relative to the root, by flat parameter, or with `use_orig_params` by
            parameter.
    """
    parameters, relative_names = (
        training.FLAT_PARAMETERS_OF_UNIT.of(flat_parameter),
        training.FLAT_NAMES.of(flat_parameter, ()),
    )
    for key in (flat_parameter, *(parameters or ())):
        for name in names.get(key, ()):
            relative = next((fqn for fqn in relative_names if f".{name}".endswith(f".{fqn}")), None)
            return str(name).removesuffix(relative or "").rstrip(".")
    return None
