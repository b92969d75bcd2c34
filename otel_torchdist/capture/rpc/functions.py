"""Names the functions that are called remotely."""

from __future__ import annotations

from functools import partial
from types import FrameType, FunctionType
from typing import Any, Final, cast

_INTERNAL: Final = frozenset({"torch.distributed.rpc.api", "torch.distributed.rpc._utils"})
"""Modules whose functions are torch's own: workers that gather at `shutdown`, and the type of a remote object."""
_ON_OBJECT: Final = "torch.distributed.rpc.rref_proxy"
"""Module of the functions that call a method of a remote object: the method's name is their second argument."""
MAX_NAME: Final = 200


def is_internal(function: Any) -> bool:
    """Whether torch calls this function for purposes of its own."""
    return getattr(function, "__module__", None) in _INTERNAL


def is_on_object(function: Any) -> bool:
    """Whether this function calls a method of a remote object."""
    return getattr(function, "__module__", None) == _ON_OBJECT


def name_of(function: Any, arguments: Any = None) -> str:
    """The name of a function, as `Optimizer.step`; of a method of a remote object, as `RRef.step`.

    Args:
        function: Any callable.
        arguments: Its arguments, if it is one that `is_on_object`.
    """
    if type(function) is FunctionType:
        if function.__module__ == _ON_OBJECT and type(arguments) is tuple and len(cast("Any", arguments)) > 1:
            return f"RRef.{cast('Any', arguments)[1]}"[:MAX_NAME]
        return function.__qualname__[:MAX_NAME]
    while type(function) is partial:
        function = cast("partial[Any]", function).func
    names = (getattr(function, name, None) for name in ("qualified_name", "__qualname__"))  # the first is TorchScript's
    found = next((name for name in names if type(name) is str), None)
    return (found or type(function).__qualname__).removeprefix("__torch__.")[:MAX_NAME]


def arguments_of(frame: FrameType) -> Any:
    """The arguments of the call that torch's frame is about to send."""
    return frame.f_locals.get("args")
