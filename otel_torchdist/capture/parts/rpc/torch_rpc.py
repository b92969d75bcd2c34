"""The private parts of `torch.distributed.rpc` that capture uses, typed as Any.

`rpc_sync`, `rpc_async` and `remote` are never patched: torch compares them by identity, and C++ holds them from
`init_rpc` to `shutdown`. Instead, the globals that they look up in every call are patched.
"""

from __future__ import annotations

import sys
from typing import Any, Final

RPC: Final = "torch.distributed.rpc"
_API: Final = f"{RPC}.api"
INVOKES_PYTHON: Final = ("_invoke_rpc_python_udf", "_invoke_remote_python_udf")
"""Functions that send a pickled function. Bytes may follow the pickle: an unpickler stops at its end."""
INVOKES_OTHERS: Final = (
    "_invoke_rpc_builtin",
    "_invoke_remote_builtin",
    "_invoke_rpc_torchscript",
    "_invoke_remote_torchscript",
)
_NEEDED: Final = {
    _API: (
        *INVOKES_PYTHON,
        *INVOKES_OTHERS,
        "_enable_rpc_profiler",
        "_wait_all_workers",
        "_finalize_shutdown",
        "_get_current_rpc_agent",
        "_is_current_rpc_agent_set",
    ),
    f"{RPC}.internal": ("_internal_rpc_pickler", "PythonUDF", "RPCExecMode"),
    "torch._C": ("Future",),
}


def rpc_module() -> Any:
    """Return `torch.distributed.rpc`, or None in a build without it, or if nothing has imported it."""
    module = sys.modules.get(RPC)
    return module if module is not None and hasattr(module, "_init_rpc_backend") else None


def missing_parts() -> list[str]:
    """Return the needed names that this torch lacks. RPC must be imported."""
    return [f"{module}.{name}" for module, names in _NEEDED.items() for name in names if not _has(module, name)]


def _has(module: str, name: str) -> bool:
    return hasattr(sys.modules.get(module), name)


class TorchRpc:
    """The needed parts of torch. None of them may be missing.

    Attributes:
        api: The module with the globals that every call uses.
        pickler: Pickles functions with their arguments.
        function_type: Type of the pickled objects: a function, its arguments, and its keyword arguments.
        future_type: The type of the futures that calls return.
        sync: The mode of `rpc_sync`.
        remote: The mode of `remote`.
    """

    def __init__(self) -> None:
        """Look up all parts.

        Raises:
            AttributeError, KeyError: A part is missing.
        """
        internal: Any = sys.modules[f"{RPC}.internal"]
        self.api: Any = sys.modules[_API]
        self.pickler: Any = internal._internal_rpc_pickler
        self.function_type: Any = internal.PythonUDF
        self.future_type: Any = sys.modules["torch._C"].__dict__["Future"]
        self.sync: Any = internal.RPCExecMode.SYNC
        self.remote: Any = internal.RPCExecMode.REMOTE

    @property
    def agent(self) -> Any:
        """The RPC agent of this process, or None."""
        return self.api._get_current_rpc_agent() if self.api._is_current_rpc_agent_set() else None
