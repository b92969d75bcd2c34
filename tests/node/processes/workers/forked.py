"""Ranks as forked children of one process, so that torch is imported once."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable


def run_ranks(size: int, body: Callable[[], object]) -> None:
    """Run `body` as every rank of a job, and end with the number of ranks that failed."""
    os.environ.update(WORLD_SIZE=str(size), GLOO_SOCKET_IFNAME="lo")
    children = [os.fork() or _be_rank(rank, body) for rank in range(size)]
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    if any(codes):
        print(f"exit codes of the ranks: {codes}", file=sys.stderr)
    sys.exit(sum(code != 0 for code in codes))


def _be_rank(rank: int, body: Callable[[], object]) -> int:
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
    try:
        body()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)
