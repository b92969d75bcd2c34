"""Who is handed every duration by itself, beside the histograms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from otel_torchdist.telemetry.metric_pictures import Duration

Listener: TypeAlias = Callable[[Sequence[Duration]], None]


class DurationListeners:
    """Those of one node; false while there are none, so that nobody need make what nobody takes."""

    def __init__(self) -> None:
        """Nobody listens."""
        self._listeners: tuple[Listener, ...] = ()

    def __bool__(self) -> bool:
        return bool(self._listeners)

    def add(self, listener: Listener) -> None:
        """Tell `listener` too, from now on."""
        self._listeners += (listener,)

    def remove(self, listener: Listener) -> None:
        """Undo `add`."""
        self._listeners = tuple(one for one in self._listeners if one != listener)

    def tell(self, durations: Sequence[Duration]) -> None:
        """Hand them out, on this thread."""
        for listener in self._listeners:
            listener(durations)
