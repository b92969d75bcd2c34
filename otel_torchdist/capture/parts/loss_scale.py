"""Knows the scale of gradient scalers without waiting for a device.

On the CPU the scale is read. On a device it is a tensor that cannot be read without synchronising, but what changes it
is known on the host: a scaler asks each optimizer whether its gradients have overflowed before it lets it step, and
`_amp_update_scale_` is a rule of three lines. So it is followed from where the tensor is made, or loaded, by the same
rule. Fused optimizers do not ask, and scalers that change the scale in their own way are not followed on devices.
"""

from __future__ import annotations

import math
import struct
import weakref
from collections.abc import Callable
from typing import Any, Final

from otel_torchdist import guard
from otel_torchdist.capture.core.torch_api import GRAD_SCALER, Patches

_FLOAT: Final = struct.Struct("=f")


class _Followed:
    """The scale of one scaler.

    Attributes:
        scale: It; None if it is not known any more.
        tracker: Steps in a row without an overflow.
        asked: Optimizers that have stepped, or were left out, since the last update.
        overflowed: Whether one of these was left out.
    """

    __slots__ = ("asked", "overflowed", "scale", "tracker")

    def __init__(self, scale: float | None = None, tracker: int = 0) -> None:
        """Initialize it as a scaler does."""
        self.scale = scale
        self.tracker = tracker
        self.asked = 0
        self.overflowed = False


class LossScales:
    """Follows the gradient scalers of this process.

    Attributes:
        newest: The scale of the one that was used last; None if it is not known.
    """

    def __init__(self, reads_cpu: bool = True) -> None:
        """Follow nothing yet; `reads_cpu` is False to follow scales on the CPU as on devices."""
        self._reads_cpu = reads_cpu
        self._scalers: weakref.WeakKeyDictionary[Any, _Followed] = weakref.WeakKeyDictionary()
        self.newest: float | None = None

    def hook(self, patches: Patches) -> None:
        """See where scales are made, loaded and updated."""
        patches.replace(GRAD_SCALER, "_lazy_init_scale_growth_tracker", self._make_begin, is_traced=True)
        patches.replace(GRAD_SCALER, "load_state_dict", self._make_load, is_traced=True)
        patches.replace(GRAD_SCALER, "update", self._make_update, is_traced=True)

    def steps(self, scaler: Any) -> None:
        """A scaler is about to let an optimizer step, or not."""
        self.newest = self._scale_of(scaler)

    def stepped(self, scaler: Any, has_overflowed: bool | None) -> None:
        """It has let it step, or not; None if that is not known."""
        followed = self._scalers.get(scaler)
        if followed is None:
            return
        if has_overflowed is None:
            followed.scale = None
            return
        followed.asked += 1
        followed.overflowed |= has_overflowed

    def _scale_of(self, scaler: Any) -> float | None:
        tensor = getattr(scaler, "_scale", None)
        if self._reads_cpu and tensor is not None and tensor.is_cpu:
            return float(tensor)
        followed = self._scalers.get(scaler)
        return followed.scale if followed is not None and _has_usual_update(scaler) else None

    def _make_begin(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def begin(scaler: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(scaler, *args, **kwargs)
            with guard.guarded("gradient scaler"):
                self._follow(scaler)
            return result

        return begin

    def _make_load(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def load(scaler: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(scaler, *args, **kwargs)
            with guard.guarded("gradient scaler"):
                if getattr(scaler, "_scale", None) is not None:
                    self._follow(scaler)
            return result

        return load

    def _follow(self, scaler: Any) -> None:
        """Begin with what is on the host: the scale that the tensor has just been filled with."""
        self._scalers[scaler] = _Followed(_single(scaler._init_scale), int(scaler._init_growth_tracker))

    def _make_update(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def update(scaler: Any, new_scale: Any = None, *args: Any, **kwargs: Any) -> Any:
            asked = 0
            with guard.guarded("gradient scaler"):
                asked = _asked_by(scaler)
            result = original(scaler, new_scale, *args, **kwargs)
            with guard.guarded("gradient scaler"):
                self._updated(scaler, new_scale, asked)
            return result

        return update

    def _updated(self, scaler: Any, new_scale: Any, asked: int) -> None:
        followed = self._scalers.get(scaler)
        if followed is not None:
            if isinstance(new_scale, float):
                followed.scale = _single(new_scale)
            elif new_scale is not None or followed.asked != asked:
                followed.scale = None
            elif followed.scale is not None:
                _apply(followed, scaler._growth_factor, scaler._backoff_factor, scaler._growth_interval)
            followed.asked, followed.overflowed = 0, False
        if getattr(scaler, "_enabled", True):
            self.newest = self._scale_of(scaler)


def _asked_by(scaler: Any) -> int:
    """How many optimizers have looked for an overflow since the last update."""
    states = getattr(scaler, "_per_optimizer_states", {})  # one that is disabled has none
    return sum(bool(state["found_inf_per_device"]) for state in states.values())


def _apply(followed: _Followed, growth: float, backoff: float, interval: int) -> None:
    """What `_amp_update_scale_` does with the scale, and in its precision."""
    scale = followed.scale or 0.0
    if followed.overflowed:
        followed.scale, followed.tracker = _single(scale * backoff), 0
        return
    followed.tracker += 1
    if followed.tracker == interval:
        grown = _single(scale * growth)
        followed.scale, followed.tracker = (grown if math.isfinite(grown) else scale), 0


def _has_usual_update(scaler: Any) -> bool:
    """Return whether updates of a scaler pass here; that of FSDP1 has its own."""
    return getattr(scaler.__class__, "update", None) is getattr(GRAD_SCALER, "update", None)


def _single(value: float) -> float:
    """Return a number as a float32."""
    try:
        return _FLOAT.unpack(_FLOAT.pack(value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)
