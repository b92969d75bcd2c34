"""Symbols of torch with which launchers are followed: torchrun's rendezvous, and ranks that fail."""

from __future__ import annotations

from typing import Final

from otel_torchdist.capture.upstream.symbol import Loss, TorchSymbol

_ELASTIC: Final = "torch.distributed.elastic"
_NO_FAILURES: Final = "a failed launch leaves no record of the exit status of its ranks"
_NO_RENDEZVOUS: Final = "torchrun does not log the nodes that it waits for"

CHILD_FAILED: Final = TorchSymbol(
    f"{_ELASTIC}.multiprocessing.errors", "ChildFailedError", "torchrun raises it when ranks have failed", _NO_FAILURES
)
SUBPROCESS_CONTEXT: Final = TorchSymbol(
    f"{_ELASTIC}.multiprocessing.api", "SubprocessContext", "holds the ranks of torchrun", _NO_FAILURES
)
PROCESS_CONTEXT: Final = TorchSymbol(
    "torch.multiprocessing.spawn", "ProcessContext", "holds the ranks of `spawn`", _NO_FAILURES
)
PROCESS_EXCEPTION: Final = TorchSymbol(
    "torch.multiprocessing.spawn", "ProcessException", "`spawn` raises it when a rank has failed", _NO_FAILURES
)
STATE_HOLDER: Final = TorchSymbol(
    f"{_ELASTIC}.rendezvous.dynamic_rendezvous:DynamicRendezvousHandler",
    "_state_holder",
    "the nodes that have joined",
    _NO_RENDEZVOUS,
    of_instances=True,
)
STATE_BACKEND: Final = TorchSymbol(
    f"{_ELASTIC}.rendezvous.dynamic_rendezvous:_BackendRendezvousStateHolder",
    "_backend",
    "the address of the rendezvous",
    "that line lacks the address",
    Loss.NOTHING,
    of_instances=True,
)
BACKEND_STORE: Final = TorchSymbol(
    f"{_ELASTIC}.rendezvous.c10d_rendezvous_backend:C10dRendezvousBackend",
    "_store",
    "the address of the rendezvous",
    "that line lacks the address",
    Loss.NOTHING,
    of_instances=True,
)

SYMBOLS: Final = tuple(value for value in vars().values() if isinstance(value, TorchSymbol))
