"""The private parts of `torch.distributed.rpc` that capture uses, typed as Any.

`rpc_sync`, `rpc_async` and `remote` are never patched: torch compares them by identity, and C++ holds them from
`init_rpc` to `shutdown`. Instead, the globals that they look up in every call are patched.
"""

from __future__ import annotations

import sys
from typing import Any, Final

from otel_torchdist.capture.upstream import core, rpc
from otel_torchdist.capture.upstream.symbol import TorchSymbol, first_missing

INVOKES_PYTHON: Final = (rpc.INVOKE_PYTHON, rpc.INVOKE_REMOTE_PYTHON)
"""Functions that send a pickled function. Bytes may follow the pickle: an unpickler stops at its end."""
INVOKES_NATIVE: Final = (
    rpc.INVOKE_BUILTIN,
    rpc.INVOKE_REMOTE_BUILTIN,
    rpc.INVOKE_SCRIPT,
    rpc.INVOKE_REMOTE_SCRIPT,
)
"""Functions that send a built-in or TorchScript function, which runs without Python."""


def rpc_module() -> Any:
    """Return `torch.distributed.rpc`, or None in a build without it, or if nothing has imported it."""
    module = rpc.JOIN.holder
    if module is None or not hasattr(module, "init_rpc"):
        return None
    return module if rpc.JOIN.is_in(module) else None


def first_missing_name() -> TorchSymbol | None:
    """Return the first needed symbol that this torch lacks, or None. RPC must be imported."""
    return first_missing(*rpc.NEEDED)


class TorchRpc:
    """The private objects of torch's RPC that recording needs; see `first_missing_name`.

    Attributes:
        api: The module with the globals that every call uses.
        pickler: Pickles functions with their arguments.
        function_type: Type of the pickled objects: a function, its arguments, and its keyword arguments.
        future_type: The type of the futures that calls return.
        sync: The mode of `rpc_sync`.
        remote: The mode of `remote`.
    """

    def __init__(self) -> None:
        """Look up all names.

        Raises:
            AttributeError, KeyError: A symbol is missing.
        """
        self.api: Any = sys.modules[rpc.INVOKE_PYTHON.module]
        self.pickler: Any = rpc.PICKLER.find()
        self.function_type: Any = rpc.PYTHON_FUNCTION.find()
        self.future_type: Any = core.FUTURE.find()
        modes: Any = rpc.EXECUTION_MODE.find()
        self.sync: Any = modes.SYNC
        self.remote: Any = modes.REMOTE

    @property
    def agent(self) -> Any:
        """The RPC agent of this process, or None."""
        return rpc.CURRENT_AGENT.find()() if rpc.HAS_AGENT.find()() else None
