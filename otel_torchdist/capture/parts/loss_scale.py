"""Tracks the loss scale of gradient scalers without synchronizing with a device.

On the CPU the scale is read. On a device it is a tensor, and reading it would synchronize. But the host knows its
changes: a scaler checks the gradients of each optimizer for overflow before its step, and `_amp_update_scale_` is a
rule of three lines. So we apply the same rule, beginning when the tensor is created or loaded. On devices, scalers with
fused optimizers (no check on the host) or with custom updates are not tracked.
"""

from __future__ import annotations

import math
import struct
import weakref
from collections.abc import Callable
from typing import Any, Final

from otel_torchdist import guard
from otel_torchdist.capture.core.torch_api import GRAD_SCALER, Patches
from otel_torchdist.capture.upstream import training

_FLOAT: Final = struct.Struct("=f")


class _TrackedScale:
    """The tracked scale of one scaler.

    Attributes:
        scale: The loss scale; None once it is unknown.
        tracker: Number of consecutive steps without an overflow.
        checked: Number of optimizers that have stepped or were skipped since the last update.
        overflowed: Whether any of these was skipped.
    """

    __slots__ = ("checked", "overflowed", "scale", "tracker")

    def __init__(self, scale: float | None = None, tracker: int = 0) -> None:
        """Initialize with the initial values of the scaler."""
        self.scale = scale
        self.tracker = tracker
        self.checked = 0
        self.overflowed = False


class LossScales:
    """The loss scales of the gradient scalers of this process.

    Attributes:
        newest: The scale of the scaler that was used last; None if unknown.
    """

    def __init__(self, reads_cpu: bool = True) -> None:
        """Initialize without scalers.

        Args:
            reads_cpu: Read scales on the CPU directly. False in tests, to exercise the device path.
        """
        self._reads_cpu = reads_cpu
        self._scalers: weakref.WeakKeyDictionary[Any, _TrackedScale] = weakref.WeakKeyDictionary()
        self.newest: float | None = None

    def hook(self, patches: Patches) -> None:
        """Patch the methods that create, load and update scales."""
        patches.replace(GRAD_SCALER, training.INIT_SCALE, self._make_begin, is_traced=True)
        patches.replace(GRAD_SCALER, "load_state_dict", self._make_load, is_traced=True)
        patches.replace(GRAD_SCALER, "update", self._make_update, is_traced=True)

    def before_step(self, scaler: Any) -> None:
        """Handle a scaler that is about to step or skip an optimizer."""
        self.newest = self._scale_of(scaler)

    def after_step(self, scaler: Any, has_overflowed: bool | None) -> None:
        """Handle a step or skip of an optimizer; `has_overflowed` is None if unknown."""
        tracked = self._scalers.get(scaler)
        if tracked is None:
            return
        if has_overflowed is None:
            tracked.scale = None
            return
        tracked.checked += 1
        tracked.overflowed |= has_overflowed

    def _scale_of(self, scaler: Any) -> float | None:
        tensor = getattr(scaler, training.SCALE.name, None)
        if self._reads_cpu and tensor is not None and tensor.is_cpu:
            return float(tensor)
        tracked = self._scalers.get(scaler)
        return tracked.scale if tracked is not None and _has_usual_update(scaler) else None

    def _make_begin(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def begin(scaler: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(scaler, *args, **kwargs)
            with guard.guarded("gradient scaler"):
                self._track(scaler)
            return result

        return begin

    def _make_load(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def load(scaler: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(scaler, *args, **kwargs)
            with guard.guarded("gradient scaler"):
                if getattr(scaler, training.SCALE.name, None) is not None:
                    self._track(scaler)
            return result

        return load

    def _track(self, scaler: Any) -> None:
        """Track a scaler, beginning with the scale on the host, with which its tensor was just filled."""
        scale, tracker = training.FIRST_SCALE.of(scaler), training.FIRST_TRACKER.of(scaler)
        if scale is not None and tracker is not None:
            self._scalers[scaler] = _TrackedScale(_to_float32(scale), int(tracker))

    def _make_update(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def update(scaler: Any, new_scale: Any = None, *args: Any, **kwargs: Any) -> Any:
            checked = 0
            with guard.guarded("gradient scaler"):
                checked = _checked_by(scaler)
            result = original(scaler, new_scale, *args, **kwargs)
            with guard.guarded("gradient scaler"):
                self._updated(scaler, new_scale, checked)
            return result

        return update

    def _updated(self, scaler: Any, new_scale: Any, checked: int) -> None:
        tracked = self._scalers.get(scaler)
        if tracked is not None:
            if isinstance(new_scale, float):
                tracked.scale = _to_float32(new_scale)
            elif new_scale is not None or tracked.checked != checked:
                tracked.scale = None
            elif tracked.scale is not None:
                rule = [symbol.of(scaler) for symbol in _RULE]
                if None in rule:
                    tracked.scale = None
                else:
                    _apply(tracked, *rule)
            tracked.checked, tracked.overflowed = 0, False
        if getattr(scaler, training.SCALER_ENABLED.name, True):
            self.newest = self._scale_of(scaler)


_RULE: Final = (training.GROWTH, training.BACKOFF, training.GROWTH_INTERVAL)
"""The attributes of a scaler that determine its next scale."""


def _checked_by(scaler: Any) -> int:
    """Return the number of optimizers that were checked for overflow since the last update."""
    states = getattr(scaler, training.SCALER_STATES.name, {})  # a disabled scaler has none
    return sum(bool(state["found_inf_per_device"]) for state in states.values())


def _apply(tracked: _TrackedScale, growth: float, backoff: float, interval: int) -> None:
    """Update the scale like `_amp_update_scale_`, in the same precision."""
    scale = tracked.scale or 0.0
    if tracked.overflowed:
        tracked.scale, tracked.tracker = _to_float32(scale * backoff), 0
        return
    tracked.tracker += 1
    if tracked.tracker == interval:
        grown = _to_float32(scale * growth)
        tracked.scale, tracked.tracker = (grown if math.isfinite(grown) else scale), 0


def _has_usual_update(scaler: Any) -> bool:
    """Return whether a scaler uses the patched `update`. FSDP1's scaler does not."""
    return getattr(scaler.__class__, "update", None) is getattr(GRAD_SCALER, "update", None)


def _to_float32(value: float) -> float:
    """Round a number to float32."""
    try:
        return _FLOAT.unpack(_FLOAT.pack(value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)
