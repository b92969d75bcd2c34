"""Replaces attributes of torch and puts the originals back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from otel_torchdist.capture.torch_api import skip_in_dynamo


class Patches:
    """Replaced attributes, restored in reverse order."""

    def __init__(self) -> None:
        """Nothing is replaced yet."""
        self._undo: list[tuple[Any, str, Any, Any]] = []

    def replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Set `owner.name` to `make(original)`; nothing happens where this torch has no such attribute."""
        original = getattr(owner, name, None)
        if original is None:
            return
        replacement = make(original)
        skip_in_dynamo(replacement.__code__)
        setattr(owner, name, replacement)
        self._undo.append((owner, name, original, replacement))

    def restore(self) -> None:
        """Put back every original, except where somebody else has replaced ours since: ours then passes through."""
        while self._undo:
            owner, name, original, replacement = self._undo.pop()
            if getattr(owner, name) is replacement:
                setattr(owner, name, original)
