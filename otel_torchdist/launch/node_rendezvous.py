"""Says in a launcher's log which nodes its rendezvous waits for: there are no ranks yet, whose tapes could show it.

torchrun imports torch, and so comes by here. Of a rendezvous that is over within seconds, only a thread has slept.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from otel_torchdist import guard

_DYNAMIC: Final = "torch.distributed.elastic.rendezvous.dynamic_rendezvous"
PATIENCE_S: Final = 3.0
"""A rendezvous that has not taken longer is not looked at."""
MAX_NODES: Final = 8
"""Nodes that a line lists."""
_logger = logging.getLogger("otel_torchdist")


def watch(imported: object) -> None:
    """Watch the rendezvous of a module that has just been imported, dynamic or static."""
    module: Any = imported
    with guard.guarded("rendezvous of nodes"):
        if module.__name__ == _DYNAMIC:
            _follow(module.DynamicRendezvousHandler, _describe_dynamic)
        else:
            _follow(module.StaticTCPRendezvous, _describe_static)


def _follow(handler_class: Any, describe: Callable[[Any], str]) -> None:
    original = handler_class.next_rendezvous

    @functools.wraps(original)
    def next_rendezvous(handler: Any) -> Any:
        is_over = threading.Event()
        with guard.guarded("rendezvous of nodes"):
            threading.Thread(
                target=_wait, args=(lambda: describe(handler), is_over), name="otel-torchdist-nodes", daemon=True
            ).start()
        try:
            return original(handler)
        finally:
            is_over.set()

    handler_class.next_rendezvous = next_rendezvous


def _wait(describe: Callable[[], str], is_over: threading.Event) -> None:
    """Say after the stall timeout who is there, and again each time the wait has doubled."""
    begun_s = time.monotonic()
    if is_over.wait(PATIENCE_S):
        return
    with guard.guarded("rendezvous of nodes"):
        due_s = _threshold_s()
        while not is_over.wait(max(begun_s + due_s - time.monotonic(), 0)):
            text = describe()
            if text:
                _logger.warning("otel_torchdist: after %.0f s %s", time.monotonic() - begun_s, text)
            due_s *= 2


def _threshold_s() -> float:
    # Imported only where it is waited for.
    from otel_torchdist.config import Config

    return Config.from_environment().stall_timeout


def _describe_dynamic(handler: Any) -> str:
    """Who has come to a rendezvous of which all nodes hold the state (c10d, etcd-v2); '' if no node is missing."""
    state, settings = handler._state_holder.state, handler.settings
    there, least, most = list(state.participants), int(settings.min_nodes), int(settings.max_nodes)
    if state.complete or len(there) >= least:
        return ""
    of = f"{least}" if least == most else f"at least {least}"
    nodes = f"{len(there)} of {of} node{'' if least == 1 else 's'} {'has' if len(there) == 1 else 'have'} come"
    missing = f"{least - len(there)} {'is' if least - len(there) == 1 else 'are'} missing"
    return f"{nodes} to the rendezvous {settings.run_id!r}{_endpoint(handler)}: {_names(there)}; {missing}"


def _names(nodes: Sequence[Any]) -> str:
    """`node0 (pid 4711), node1 (pid 815)`."""
    shown = [f"{node.addr} (pid {node.pid})" for node in sorted(nodes, key=lambda node: (node.addr, node.pid))]
    more = [f"{len(shown) - MAX_NODES} more"] if len(shown) > MAX_NODES else []
    return ", ".join([*shown[:MAX_NODES], *more]) or "none"


def _endpoint(handler: Any) -> str:
    backend = getattr(handler._state_holder, "_backend", None)
    store: Any = getattr(backend, "_store", None)
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return f" at {store.host}:{store.port}" if hasattr(store, "host") and hasattr(store, "port") else ""


def _describe_static(handler: Any) -> str:
    """Who waits at the address of a static rendezvous: there, no node sees which others have come."""
    at = f"{handler.master_addr}:{handler.master_port}"
    if handler.rank == 0:
        others = "node 1" if handler.world_size == 2 else f"nodes 1-{handler.world_size - 1}"
        return f"not all of {handler.world_size} nodes have come to node 0 at {at}, which waits for {others}"
    return f"node {handler.rank} of {handler.world_size} has not found node 0 at {at}"
