"""Symbols of torch with which operations and groups are recorded."""

from __future__ import annotations

from typing import Final

from otel_torchdist.capture.upstream.symbol import Loss, TorchSymbol

_C10D: Final = "torch.distributed.distributed_c10d"
BINDINGS: Final = "torch._C._distributed_c10d"
"""The module of c10d's bindings."""
_GROUP: Final = f"{BINDINGS}:ProcessGroup"
_GLOO: Final = f"{BINDINGS}:ProcessGroupGloo"
_WINDOW: Final = f"{BINDINGS}:Window"
_OVERLOAD: Final = "torch:ops.aten.relu.default"
_IS_OFF: Final = "nothing is recorded"
_NOT_WITH_CUDA: Final = "operations on CUDA devices are not followed"
_NO_WINDOWS: Final = "operations on windows are not recorded"
_NO_ABORT_HOOKS: Final = "OTEL_PYTHON_TORCHDIST_ABORT_HOOKS has no effect"
_NO_TIMEOUTS: Final = "the timeouts of groups are unknown, so no verdict says when the backend gives up"

# --- the dispatcher ---------------------------------------------------------------------------------------------------

DISPATCH_KEY: Final = TorchSymbol(
    "torch._C", "DispatchKey", "the key `BackendSelect`, for which our kernels are registered", _IS_OFF, Loss.RECORDING
)
DISPATCH_KEY_SET: Final = TorchSymbol(
    "torch._C", "DispatchKeySet", "removes our key when a kernel calls the next one", _IS_OFF, Loss.RECORDING
)
OVERLOAD_HANDLE: Final = TorchSymbol(
    _OVERLOAD, "_handle", "its `redispatch_boxed` calls the next kernel of an operation", _IS_OFF, Loss.RECORDING
)
OVERLOAD_SCHEMA: Final = TorchSymbol(
    _OVERLOAD, "_schema", "names and types of an operation's arguments", _IS_OFF, Loss.RECORDING
)
HAS_KERNEL: Final = TorchSymbol(
    "torch._C",
    "_dispatch_has_kernel_for_dispatch_key",
    "finds kernels of other libraries, which ours would hide",
    _IS_OFF,
    Loss.RECORDING,
)
OP_NAMES: Final = TorchSymbol(
    "torch._C", "_dispatch_get_all_op_names", "lists operations if the next symbol is missing", _IS_OFF, Loss.NOTHING
)
OPS_OF_KEY: Final = TorchSymbol(
    "torch._C",
    "_dispatch_get_registrations_for_dispatch_key",
    "lists the operations of c10d without listing all of torch's",
    "a rank takes up to 2 MB more",
    Loss.NOTHING,
)
REMOVE_LIBRARY: Final = TorchSymbol(
    "torch.library:Library",
    "_destroy",
    "removes our kernels when recording is switched off",
    "the kernels stay after `uninstrument()`, and pass calls on",
)
FUNCTIONAL_OPS: Final = TorchSymbol(
    "torch:ops",
    "_c10d_functional",
    "the waits of functional collectives",
    "functional collectives end when they are polled, not at the wait",
)
COMM_LABEL: Final = TorchSymbol(
    BINDINGS,
    "_get_comm_profiling_name",
    "the label that torch gives to its own calls, such as `FSDP::all_gather`",
    "calls of torch's own code are shown without that label",
    since="2.13",
)
BACKWARD_ID: Final = TorchSymbol(
    "torch._C",
    "_current_graph_task_id",
    "the number of the backward pass that makes a call",
    "the phase of calls is unknown",
)
CUDA_STREAM: Final = TorchSymbol(
    "torch._C",
    "_cuda_getCurrentRawStream",
    "the caller's stream, on which we record events",
    _NOT_WITH_CUDA,
    builds="CUDA",
)

# --- groups -----------------------------------------------------------------------------------------------------------

WORLD: Final = TorchSymbol(
    _C10D, "_world", "torch's registry of groups: their members, names and stores", _IS_OFF, Loss.RECORDING
)
NEW_GROUP_HELPER: Final = TorchSymbol(
    _C10D,
    "_new_process_group_helper",
    "creates a group: its members, its name, how long the creation takes",
    "the creation of groups is not recorded, and their collectives are not compared across ranks",
)
UPDATE_DEFAULT_GROUP: Final = TorchSymbol(
    _C10D,
    "_update_default_pg",
    "sets the default group, after which ranks agree on a run id",
    "nothing is recorded until an operation of the default group",
)
RENDEZVOUS: Final = TorchSymbol(
    _C10D,
    "rendezvous",
    "waits for all ranks at the store, before there is a group",
    "ranks that are missing at the start of the job are not named",
)
REGISTER_GROUP: Final = TorchSymbol(
    _C10D,
    "_register_pg_in_world",
    "registers the groups that `split_group` creates",
    "groups of `split_group` are recorded from their first operation on",
    since="2.15",
)
SPLIT_GROUP: Final = TorchSymbol(
    _GROUP,
    "split_group",
    "creates a group from another one",
    "groups of `split_group` are recorded from their first operation on",
    since="2.13",
)
RESOLVE_GROUP: Final = TorchSymbol(
    BINDINGS,
    "_resolve_process_group",
    "the group of a name, for device meshes and symmetric memory",
    "dimensions of device meshes and operations on symmetric memory are not recorded",
)
DEVICE_TYPES: Final = TorchSymbol(_GROUP, "_device_types", "the devices for which a group has a backend", _NO_TIMEOUTS)
GET_BACKEND: Final = TorchSymbol(
    _GROUP,
    "_get_backend",
    "the backend of a group: its name, its timeout, how its operations end",
    "the timeouts of groups are unknown, and a group with several backends is taken for one with one",
)
BACKEND_TIMEOUT: Final = TorchSymbol(
    f"{_GLOO}.Options",
    "_timeout",
    "the timeout of a backend's operations",
    _NO_TIMEOUTS,
    Loss.NOTHING,
    of_instances=True,
)
SET_GROUP_TIMEOUT: Final = TorchSymbol(
    _GROUP, "set_timeout", "changes the timeout of a group", "changed timeouts are not noticed", since="2.13"
)
SET_TIMEOUT: Final = TorchSymbol(
    _GLOO,
    "_set_default_timeout",
    "changes the timeout of a backend, in torch 2.8",
    "changed timeouts are not noticed",
    Loss.NOTHING,
)
RECONFIGURE: Final = TorchSymbol(
    _GROUP,
    "reconfigure",
    "replaces the members of a group",
    "operations of reconfigured groups are compared wrongly",
    since="2.15",
)
RECONFIGURE_HANDLE: Final = TorchSymbol(
    _GROUP, "get_reconfigure_handle", "this rank among the new members", _IS_OFF, Loss.NOTHING, since="2.15"
)
NEW_WINDOW: Final = TorchSymbol(_GROUP, "new_window", "creates a window of a group", _NO_WINDOWS, since="2.15")
WINDOW_PUT: Final = TorchSymbol(_WINDOW, "put", "writes to a peer's window", _NO_WINDOWS, since="2.15")
WINDOW_SIGNAL: Final = TorchSymbol(_WINDOW, "signal", "signals a peer", _NO_WINDOWS, since="2.15")
WINDOW_WAIT: Final = TorchSymbol(_WINDOW, "wait_signal", "waits for a peer's signal", _NO_WINDOWS, since="2.15")
SUPPORTS_ABORT_HOOKS: Final = TorchSymbol(
    _GROUP, "supports_abort_hooks", "whether a backend calls abort hooks", _NO_ABORT_HOOKS, since="2.15"
)
ADD_ABORT_HOOK: Final = TorchSymbol(
    _GROUP, "register_abort_hook", "calls us when a backend gives up", _NO_ABORT_HOOKS, since="2.15"
)
REMOVE_ABORT_HOOK: Final = TorchSymbol(
    _GROUP, "unregister_abort_hook", "removes that hook", _NO_ABORT_HOOKS, since="2.15"
)

# --- calls and their ends ---------------------------------------------------------------------------------------------

START_COALESCING: Final = TorchSymbol(
    _GROUP,
    "_start_coalescing",
    "begins a block of operations that end together",
    "operations in such blocks end one by one, when they are polled",
)
END_COALESCING: Final = TorchSymbol(
    _GROUP, "_end_coalescing", "returns the Work of the block", "the ends of coalesced operations are unknown"
)
FUTURE: Final = TorchSymbol("torch._C", "Future", "its `wait` blocks a thread", "waits for futures are not recorded")
REDUCE_OP_TYPES: Final = TorchSymbol(
    f"{BINDINGS}:ReduceOp", "RedOpType", "the names of reduce ops", "operations are shown without their reduce op"
)
SYMM_MEM_RENDEZVOUS: Final = TorchSymbol(
    "torch:ops.symm_mem",
    "_rendezvous",
    "an operation with a group that no other rank waits for",
    "none: an operation that torch lacks is not called",
    Loss.NOTHING,
    since="2.15",
)
GLOO_ALL_GATHER: Final = TorchSymbol(
    _GLOO,
    "_allgather_base",
    "a call of a standalone backend",
    "such calls are not recorded",
)
GLOO_REDUCE_SCATTER: Final = TorchSymbol(
    _GLOO, "_reduce_scatter_base", "a call of a standalone backend", "such calls are not recorded"
)

SYMBOLS: Final = tuple(value for value in vars().values() if isinstance(value, TorchSymbol))
REQUIRED: Final = tuple(symbol for symbol in SYMBOLS if symbol.loss is Loss.RECORDING)
"""Symbols without which nothing can be recorded."""
