"""Replaces attributes of torch and puts the originals back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from otel_torchdist.capture.torch_api import is_bindings_method, opaque_to_dynamo, skip_in_dynamo

_ABSENT: Final = object()


class Patches:
    """Replaced attributes, restored in reverse order."""

    def __init__(self) -> None:
        """Nothing is replaced yet."""
        self._undo: list[tuple[Any, str, Any, Any]] = []

    def replace(self, owner: Any, name: str, make: Callable[[Any], Any], is_traced: bool = False) -> None:
        """Set `owner.name` to `make(original)`; nothing happens where this torch has no such attribute.

        Args:
            owner: A module or a class.
            name: The attribute.
            make: Gets the original as it is called, without `self`.
            is_traced: Whether Dynamo may meet it while it traces a program, and compiles what the original calls.
        """
        original = getattr(owner, name, None)
        if original is None:
            return
        # What lies in the class, not what `getattr` makes of it: a method of pybind's would come back unbound.
        stored: Any = _own(owner, name)
        function = make(original)
        skip_in_dynamo(function.__code__, with_callees=not is_traced)
        replacement = opaque_to_dynamo(function) if is_traced or is_bindings_method(stored) else function
        setattr(owner, name, replacement)
        self._undo.append((owner, name, stored, replacement))

    def restore(self) -> None:
        """Put back every original, except where somebody else has replaced ours since: ours then passes through."""
        while self._undo:
            owner, name, stored, replacement = self._undo.pop()
            if _own(owner, name) is not replacement:
                continue
            if stored is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, stored)


def _own(owner: Any, name: str) -> Any:
    return owner.__dict__.get(name, _ABSENT)
