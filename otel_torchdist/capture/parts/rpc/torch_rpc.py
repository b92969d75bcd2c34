"""The non-public parts of `torch.distributed.rpc` that capture uses, typed as Any.

`rpc_sync`, `rpc_async` and `remote` themselves are never replaced: torch compares them by identity, and C++ keeps them
from `init_rpc` to `shutdown`. What is replaced are globals that they look up in every call.
"""

from __future__ import annotations

import sys
from typing import Any, Final

RPC: Final = "torch.distributed.rpc"
_API: Final = f"{RPC}.api"
INVOKES_PYTHON: Final = ("_invoke_rpc_python_udf", "_invoke_remote_python_udf")
"""Send a pickled function, whose bytes may be followed by others: an unpickler stops at the pickle's own end."""
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
    """`torch.distributed.rpc`; None in a build without it, or if nothing has imported it."""
    module = sys.modules.get(RPC)
    return module if module is not None and hasattr(module, "_init_rpc_backend") else None


def missing_parts() -> list[str]:
    """What this torch does not have of all that is needed; RPC must be there."""
    return [f"{module}.{name}" for module, names in _NEEDED.items() for name in names if not _has(module, name)]


def _has(module: str, name: str) -> bool:
    return hasattr(sys.modules.get(module), name)


class TorchRpc:
    """What is needed of torch, once nothing of it is missing.

    Attributes:
        api: The module whose globals every call passes through.
        pickler: Pickles functions with their arguments.
        function_type: What it pickles: a function, its arguments, and its keyword arguments.
        future_type: The type of the futures that calls return.
        sync: The mode of `rpc_sync`.
        remote: The mode of `remote`.
    """

    def __init__(self) -> None:
        """Look everything up.

        Raises:
            AttributeError, KeyError: Something is missing.
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
        """The agent through which this process makes calls; None if there is none."""
        return self.api._get_current_rpc_agent() if self.api._is_current_rpc_agent_set() else None
