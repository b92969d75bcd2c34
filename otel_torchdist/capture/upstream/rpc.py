"""Symbols of torch with which remote procedure calls are recorded."""

from __future__ import annotations

from typing import Final

from otel_torchdist.capture.upstream.symbol import Loss, TorchSymbol

_API: Final = "torch.distributed.rpc.api"
_INTERNAL: Final = "torch.distributed.rpc.internal"
_NOT_RECORDED: Final = "remote procedure calls are not recorded"

INVOKE_PYTHON: Final = TorchSymbol(_API, "_invoke_rpc_python_udf", "sends a pickled function", _NOT_RECORDED)
INVOKE_REMOTE_PYTHON: Final = TorchSymbol(
    _API, "_invoke_remote_python_udf", "sends a pickled function of `remote`", _NOT_RECORDED
)
INVOKE_BUILTIN: Final = TorchSymbol(_API, "_invoke_rpc_builtin", "sends an operation of torch", _NOT_RECORDED)
INVOKE_REMOTE_BUILTIN: Final = TorchSymbol(
    _API, "_invoke_remote_builtin", "sends an operation of torch of `remote`", _NOT_RECORDED
)
INVOKE_SCRIPT: Final = TorchSymbol(_API, "_invoke_rpc_torchscript", "sends a TorchScript function", _NOT_RECORDED)
INVOKE_REMOTE_SCRIPT: Final = TorchSymbol(
    _API, "_invoke_remote_torchscript", "sends a TorchScript function of `remote`", _NOT_RECORDED
)
ENABLE_PROFILER: Final = TorchSymbol(
    _API, "_enable_rpc_profiler", "receives the function and the mode of each call", _NOT_RECORDED
)
WAIT_ALL_WORKERS: Final = TorchSymbol(_API, "_wait_all_workers", "waits in `shutdown` for the others", _NOT_RECORDED)
FINALIZE_SHUTDOWN: Final = TorchSymbol(_API, "_finalize_shutdown", "leaves RPC", _NOT_RECORDED)
CURRENT_AGENT: Final = TorchSymbol(
    _API, "_get_current_rpc_agent", "the worker's own id and name, and its peers", _NOT_RECORDED
)
HAS_AGENT: Final = TorchSymbol(_API, "_is_current_rpc_agent_set", "whether this process is a worker", _NOT_RECORDED)
PICKLER: Final = TorchSymbol(
    _INTERNAL, "_internal_rpc_pickler", "unpickles requests: which function runs for whom", _NOT_RECORDED
)
PYTHON_FUNCTION: Final = TorchSymbol(_INTERNAL, "PythonUDF", "type of a pickled request", _NOT_RECORDED)
EXECUTION_MODE: Final = TorchSymbol(
    _INTERNAL, "RPCExecMode", "distinguishes `rpc_sync`, `rpc_async` and `remote`", _NOT_RECORDED
)
REMOTE_FUTURE: Final = TorchSymbol(
    "torch._C._distributed_rpc:PyRRef",
    "_get_future",
    "the end of a call of `remote`",
    "calls of `remote` are not recorded",
)
ASYNC_FUNCTION: Final = TorchSymbol(
    "torch.distributed.rpc.functions:async_execution",
    "_wrapped_async_rpc_function",
    "marks a function whose result comes later",
    "calls of such functions end when they return",
    of_instances=True,
)
UTILS: Final = TorchSymbol(
    "torch.distributed.rpc",
    "_utils",
    "its functions are torch's own calls in `shutdown`",
    "these calls are recorded too",
    Loss.NOTHING,
)
JOIN: Final = TorchSymbol("torch.distributed.rpc", "_init_rpc_backend", "joins RPC", _NOT_RECORDED)

NEEDED: Final = (
    *(INVOKE_PYTHON, INVOKE_REMOTE_PYTHON, INVOKE_BUILTIN, INVOKE_REMOTE_BUILTIN, INVOKE_SCRIPT, INVOKE_REMOTE_SCRIPT),
    *(ENABLE_PROFILER, WAIT_ALL_WORKERS, FINALIZE_SHUTDOWN, CURRENT_AGENT, HAS_AGENT),
    *(PICKLER, PYTHON_FUNCTION, EXECUTION_MODE),
)
"""Symbols without which no remote call is recorded."""
SYMBOLS: Final = tuple(value for value in vars().values() if isinstance(value, TorchSymbol))
