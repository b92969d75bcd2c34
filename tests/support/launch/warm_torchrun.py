"""torchrun that forks its ranks, and that is itself forked from an interpreter that has imported torch."""

from __future__ import annotations

import sys

from torch.distributed import run
from torch.distributed.elastic.rendezvous import api

from deploy.native.ports import free_port
from tests.support.launch.forked_ranks import fork_ranks

if __name__ == "__main__":
    # Without a store in torchrun, rank 0 listens on it a second or two later: meanwhile others get the system's ports.
    api.get_free_port = free_port  # pyright: ignore[reportPrivateImportUsage]
    fork_ranks()
    run.main(sys.argv[1:])
