"""Dumps as NCCL's flight recorder writes them, of ranks one of which does not come to a collective."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any, Final

BEGAN_NS: Final = 1_758_610_505_000_000_000
STEP_NS: Final = 10_000_000
TIMEOUT_MS: Final = 60_000


def write_dumps(folder: Path, ranks: int, calls: int, absent: int) -> Path:
    """Write a dump for each rank: all complete so many all_reduces, and all but one enter another.

    Returns:
        The folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for rank in range(ranks):
        entered = calls if rank == absent else calls + 1
        (folder / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(_dump(ranks, calls, entered), protocol=2))
    return folder


def _dump(ranks: int, completed: int, entered: int) -> dict[str, Any]:
    members = list(range(ranks))
    return {
        "version": "2.10",
        "comm_lib_version": "2.27.3",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": str(members)}},
        "pg_status": {
            "0": {
                "last_enqueued_collective": entered,
                "last_started_collective": -1,
                "last_completed_collective": completed,
            }
        },
        "entries": [_entry(number, number < completed) for number in range(entered)],
    }


def _entry(number: int, is_over: bool) -> dict[str, Any]:
    created_ns = BEGAN_NS + number * STEP_NS
    return {
        "record_id": number,
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "thread_name": "python",
        "thread_id": "140000000000000",
        "collective_seq_id": number + 1,
        "p2p_seq_id": 0,
        "op_id": number + 1,
        "profiling_name": "nccl:all_reduce",
        "time_created_ns": created_ns,
        "input_sizes": [[1024]],
        "input_dtypes": ["Float"],
        "output_sizes": [[1024]],
        "output_dtypes": ["Float"],
        "state": "completed" if is_over else "scheduled",
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": created_ns + STEP_NS // 2 if is_over else None,
        "retired": is_over,
        "timeout_ms": TIMEOUT_MS,
        "is_p2p": False,
        "frames": [{"name": "train", "filename": "/home/user/train.py", "line": 42}],
    }
