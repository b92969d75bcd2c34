"""Dumps of a job of two ranks in JSON, in which rank 1 has not entered the second `all_reduce`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

BEGUN_NS: Final = 1_790_000_000_000_000_000


def dump_of(rank: int, begun_ns: int = BEGUN_NS) -> Mapping[str, Any]:
    """What rank 0 or 1 would write; its calls were made 1 s and 2 s after `begun_ns`."""
    return {
        "version": "2.10",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}},
        "pg_status": {
            "0": {
                "last_enqueued_collective": 2 - rank,
                "last_started_collective": -1,
                "last_completed_collective": 1,
            }
        },
        "entries": [_entry(begun_ns, sequence) for sequence in range(1, 3 - rank)],
    }


def _entry(begun_ns: int, sequence: int) -> Mapping[str, Any]:
    called_ns, is_completed = begun_ns + sequence * 1_000_000_000, sequence == 1
    return {
        "record_id": sequence - 1,
        "pg_id": 0,
        "process_group": ["0", "default_pg"],
        "collective_seq_id": sequence,
        "p2p_seq_id": 0,
        "op_id": sequence,
        "profiling_name": "nccl:all_reduce",
        "time_created_ns": called_ns,
        "input_sizes": [[16]],
        "input_dtypes": ["Float"],
        "output_sizes": [[16]],
        "output_dtypes": ["Float"],
        "state": "completed" if is_completed else "scheduled",
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": called_ns + 1_000_000 if is_completed else None,
        "retired": is_completed,
        "timeout_ms": 600_000,
        "is_p2p": False,
        "frames": [],
    }
