"""The units of FSDP: which module's parameters a call gathers, or whose gradients it reduces.

In `fully_shard` a unit is an `FSDPParamGroup`, whose methods gather and reduce for it wherever that begins: in the
hooks of its module, ahead of time for the next unit, or called by the program. In the older FSDP it is a flat
parameter.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Final

from otel_torchdist.model.names import LabelKind, LabelName

if TYPE_CHECKING:
    from types import ModuleType

    from otel_torchdist.capture.core.recorder import Recorder
    from otel_torchdist.capture.core.thread_labels import ThreadLabels
    from otel_torchdist.capture.core.torch_api import Patches, Replaced

PARAM_GROUPS: Final = "torch.distributed.fsdp._fully_shard._fsdp_param_group"
FLAT_PARAMETERS: Final = "torch.distributed.fsdp._runtime_utils"
IMPORTERS: Final = (
    "torch.distributed.fsdp._unshard_param_utils",
    "torch.distributed.fsdp.fully_sharded_data_parallel",
)
"""Modules that have a name of their own for `_unshard`; they hold the original if they were imported before us."""
MAX_UNIT: Final = 200
"""Letters of a unit's name: one of several modules has the names of all."""
MAX_UNITS: Final = 4096
"""Units whose words are kept; those beyond are found anew each time."""
_GATHER: Final = "_unshard"


class ParamGroups:
    """Labels what `fully_shard` gathers and reduces.

    Units are asked for several times a step each, and between two layers caches hold other things: so the words of
    labels are kept by the units' names, and little code runs.
    """

    def __init__(self, labels: ThreadLabels) -> None:
        self._labels = labels
        self._words: dict[str, int] = {}
        self._recorder: Recorder | None = None

    def replaced(self, module: ModuleType) -> Replaced:
        """What is replaced in the module of the units."""
        return [(getattr(module, "FSDPParamGroup", None), name) for name in ("unshard", "post_backward")]

    def hook(self, patches: Patches, module: ModuleType) -> None:
        """Replace it."""
        for owner, name in self.replaced(module):
            patches.replace(owner, name, lambda original: self._labels.around(original, self._word_of))

    def _word_of(self, group: Any, *_: Any, **__: Any) -> int:
        """Return the word of an `FSDPParamGroup`: '' is the root, None stands before the first forward."""
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
    """Labels what the older FSDP gathers and reduces."""

    def __init__(self, labels: ThreadLabels) -> None:
        self._labels = labels
        self._known: weakref.WeakKeyDictionary[Any, LabelName] = weakref.WeakKeyDictionary()

    def replaced(self, module: ModuleType) -> Replaced:
        """What is replaced in the module of the units."""
        return [(module, name) for name in (_GATHER, "_reduce_grad", "_reduce_grad_no_shard")]

    def hook(self, patches: Patches, module: ModuleType) -> None:
        """Replace it."""
        for owner, name in self.replaced(module):
            patches.replace(owner, name, lambda original: self._labels.around(original, self._word_of))

    def hook_importer(self, patches: Patches, module: ModuleType) -> None:
        """Replace the function that gathers where another module has imported it, unless that is ours already."""
        if not hasattr(getattr(module, _GATHER, None), "__wrapped__"):
            patches.replace(module, _GATHER, lambda original: self._labels.around(original, self._word_of))

    def _word_of(self, state: Any, handle: Any, *_: Any, **__: Any) -> int:
        return self._labels.word_of(self._unit_of(state, handle))

    def _unit_of(self, state: Any, handle: Any) -> LabelName | None:
        if not handle:
            return None
        known = self._known.get(handle)
        if known is None:
            unit = _module_of(handle.flat_param, state._exec_order_data.param_to_fqn)
            if unit is None:
                return None
            known = self._known[handle] = LabelName(LabelKind.FSDP, unit=unit[:MAX_UNIT])
        return known


def _module_of(flat_parameter: Any, names: Any) -> str | None:
    """Return the module that a flat parameter is of, '' for the root; None before the first forward.

    Args:
        flat_parameter: It knows the names of its parameters within its module.
        names: The names of all parameters within the root, by flat parameter or, with `use_orig_params`, by parameter.
    """
    for key in (flat_parameter, *(flat_parameter._params or ())):
        for name in names.get(key, ()):
            within = next((one for one in flat_parameter._fqns if f".{name}".endswith(f".{one}")), None)
            return str(name).removesuffix(within or "").rstrip(".")
    return None
