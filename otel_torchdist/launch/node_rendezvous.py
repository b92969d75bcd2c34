"""Logs the nodes that a launcher's rendezvous waits for. At that time, neither ranks nor tapes exist.

torchrun imports torch, and so loads this. In a rendezvous of a few seconds, it only starts a thread that sleeps.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from otel_torchdist import guard
from otel_torchdist.capture.upstream import launch as symbols

_DYNAMIC: Final = "torch.distributed.elastic.rendezvous.dynamic_rendezvous"
FIRST_CHECK_S: Final = 3.0
"""Seconds for which a rendezvous is not examined, nor the settings read."""
MAX_NODES: Final = 8
"""Maximum number of nodes in a log line."""
_logger = logging.getLogger("otel_torchdist")


def watch(imported: object) -> None:
    """Watch the rendezvous handler of an imported module, dynamic or static."""
    module: Any = imported
    with guard.guarded("rendezvous of nodes"):
        if module.__name__ == _DYNAMIC:
            _wrap(module.DynamicRendezvousHandler, _describe_dynamic)
        else:
            _wrap(module.StaticTCPRendezvous, _describe_static)


def _wrap(handler_class: Any, describe: Callable[[Any], str]) -> None:
    original = handler_class.next_rendezvous

    @functools.wraps(original)
    def next_rendezvous(handler: Any) -> Any:
        is_over = threading.Event()
        with guard.guarded("rendezvous of nodes"):
            threading.Thread(
                target=_log_while_waiting,
                args=(lambda: describe(handler), is_over),
                name="otel-torchdist-nodes",
                daemon=True,
            ).start()
        try:
            return original(handler)
        finally:
            is_over.set()

    handler_class.next_rendezvous = next_rendezvous


def _log_while_waiting(describe: Callable[[], str], is_over: threading.Event) -> None:
    """Log the state of the rendezvous after the stall timeout, and again whenever the wait has doubled."""
    started_s = time.monotonic()
    if is_over.wait(FIRST_CHECK_S):
        return
    with guard.guarded("rendezvous of nodes"):
        due_s = _threshold_s()
        while due_s > 0 and not is_over.wait(max(started_s + due_s - time.monotonic(), 0)):
            text = describe()
            if text:
                _logger.warning("otel_torchdist: after %.0f s %s", time.monotonic() - started_s, text)
            due_s *= 2


def _threshold_s() -> float:
    """Return the stall timeout; 0 if jobs of this launcher are not recorded."""
    # Late imports: most rendezvous are over within seconds.
    import os

    from otel_torchdist.config import Config
    from otel_torchdist.node.job.share import belongs_to_share

    config = Config.from_environment()
    is_recorded = config.switched_on and belongs_to_share(config.share, os.environ)
    return config.stall_timeout if is_recorded else 0.0


def _describe_dynamic(handler: Any) -> str:
    """Describe a dynamic rendezvous (c10d, etcd-v2), whose state all nodes share; '' if no node is missing."""
    holder = symbols.STATE_HOLDER.of(handler)
    if holder is None:
        return ""
    state, settings = holder.state, handler.settings
    joined, min_nodes, max_nodes = list(state.participants), int(settings.min_nodes), int(settings.max_nodes)
    if state.complete or len(joined) >= min_nodes:
        return ""
    required = f"{min_nodes}" if min_nodes == max_nodes else f"at least {min_nodes}"
    verb = "has" if len(joined) == 1 else "have"
    nodes = f"{len(joined)} of {required} node{'' if min_nodes == 1 else 's'} {verb} joined"
    missing = f"{min_nodes - len(joined)} {'is' if min_nodes - len(joined) == 1 else 'are'} missing"
    return f"{nodes} the rendezvous {settings.run_id!r}{_endpoint(handler)}: {_names(joined)}; {missing}"


def _names(nodes: Sequence[Any]) -> str:
    """Format nodes as `node0 (pid 4711), node1 (pid 815)`."""
    shown = [f"{node.addr} (pid {node.pid})" for node in sorted(nodes, key=lambda node: (node.addr, node.pid))]
    more = [f"{len(shown) - MAX_NODES} more"] if len(shown) > MAX_NODES else []
    return ", ".join([*shown[:MAX_NODES], *more]) or "none"


def _endpoint(handler: Any) -> str:
    backend = getattr(symbols.STATE_HOLDER.of(handler), symbols.STATE_BACKEND.name, None)
    store: Any = getattr(backend, symbols.BACKEND_STORE.name, None)
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return f" at {store.host}:{store.port}" if hasattr(store, "host") and hasattr(store, "port") else ""


def _describe_static(handler: Any) -> str:
    """Describe a static rendezvous, in which no node knows the nodes that have joined."""
    at = f"{handler.master_addr}:{handler.master_port}"
    if handler.rank == 0:
        others = "node 1" if handler.world_size == 2 else f"nodes 1-{handler.world_size - 1}"
        return f"not all of {handler.world_size} nodes have joined node 0 at {at}, which waits for {others}"
    return f"node {handler.rank} of {handler.world_size} has not found node 0 at {at}"
