"""Replaces attributes of torch and puts the originals back."""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType
from typing import Any


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
        skip_in_dynamo(getattr(replacement, "__code__", None))
        setattr(owner, name, replacement)
        self._undo.append((owner, name, original, replacement))

    def restore(self) -> None:
        """Put back every original, except where somebody else has replaced ours since: ours then passes through."""
        while self._undo:
            owner, name, original, replacement = self._undo.pop()
            if getattr(owner, name) is replacement:
                setattr(owner, name, original)


def skip_in_dynamo(code: CodeType | None) -> None:
    """Tell Dynamo to run a code object as it is.

    Traced, our kernels add graph breaks and warnings that the user sees. The strategy costs nothing at run time,
    `torch._dynamo.disable` 0.8 µs a call. Older versions of torch have only `skip_code`.
    """
    from torch._C._dynamo import eval_frame

    if code is None:
        return
    set_strategy = getattr(eval_frame, "set_code_exec_strategy", None)
    if set_strategy is None:
        eval_frame.skip_code(code)  # pyright: ignore
        return
    action = eval_frame._FrameAction.SKIP
    set_strategy(code, eval_frame._FrameExecStrategy(action, action))
