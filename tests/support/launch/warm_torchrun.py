"""torchrun that forks its ranks, and that is itself forked from an interpreter that has imported torch."""

from __future__ import annotations

import sys

from torch.distributed import run

from tests.support.launch.forked_ranks import fork_ranks

if __name__ == "__main__":
    fork_ranks()
    run.main(sys.argv[1:])
