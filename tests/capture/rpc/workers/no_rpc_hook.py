"""One worker of RPC in a torch that lacks a private part that recording needs, and torch itself does not."""

from __future__ import annotations

import os

from torch.distributed import rpc

from tests.support.ranks import rank as own

del rpc.internal.RPCExecMode


def main() -> None:
    """Call itself."""
    capture = own.start_capture()
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{os.environ[own.STORE]}")
    rpc.init_rpc("worker0", rank=0, world_size=1, rpc_backend_options=options)
    own.say(sum=rpc.rpc_sync("worker0", sum, ((1, 2),)))
    assert capture.current_recorder() is None
    rpc.shutdown()
    capture.uninstall()


main()
