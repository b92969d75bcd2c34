"""One RPC worker with a torch that lacks a private name that only recording needs."""

from __future__ import annotations

from torch.distributed import rpc

from tests.support.ranks import rank as own
from tests.support.ranks import rpc_worker

del rpc.internal.RPCExecMode


def main() -> None:
    """Call itself."""
    capture = own.start_capture()
    rpc_worker.join(0, 1)
    own.say(sum=rpc.rpc_sync("worker0", sum, ((1, 2),)))
    assert capture.current_recorder() is None
    rpc.shutdown()
    capture.uninstall()


main()
