"""Dumps as PyTorch's flight recorder writes them, made up: what the recorder's dictionaries hold, and as files."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

START_NS = 1_758_610_505_000_000_000
SECOND = 1_000_000_000

Document = dict[str, Any]


def call(
    sequence: int,
    name: str = "nccl:all_reduce",
    *,
    state: str = "completed",
    group: str = "0",
    description: str = "default_pg",
    pg_id: int = 0,
    p2p: int = 0,
    at_s: float = 0.0,
    **others: Any,
) -> Document:
    """One entry; `record_id` is added by `document`."""
    created_ns = START_NS + round(at_s * SECOND)
    return {
        "pg_id": pg_id,
        "process_group": (group, description),
        "thread_name": "python",
        "thread_id": "139",
        "collective_seq_id": sequence,
        "p2p_seq_id": p2p,
        "op_id": sequence + p2p,
        "profiling_name": name,
        "time_created_ns": created_ns,
        "input_sizes": [[4]],
        "input_dtypes": ["Float"],
        "output_sizes": [[4]],
        "output_dtypes": ["Float"],
        "state": state,
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": created_ns + 1_000_000 if state == "completed" else None,
        "retired": state == "completed",
        "timeout_ms": 600_000,
        "is_p2p": p2p > 0,
    } | others


def document(
    entries: Iterable[Document],
    groups: Mapping[str, Sequence[int]],
    status: Mapping[int, tuple[int, int]] | None = None,
    *,
    version: str = "2.9",
    first: int = 0,
) -> Document:
    """A dump.

    Args:
        entries: Its calls.
        groups: Members by name.
        status: By `pg_id`, what was enqueued and completed last; by default what the calls of the first group show.
        version: Of the format.
        first: `record_id` of the first call.
    """
    calls = [{"record_id": first + nth, **entry} for nth, entry in enumerate(entries)]
    if status is None:
        own = [one for one in calls if one["pg_id"] == 0]
        done = [one["collective_seq_id"] for one in own if one["state"] == "completed"]
        status = {0: (max((one["collective_seq_id"] for one in own), default=0), max(done, default=0))}
    return {
        "version": version,
        "nccl_version": "2.27.3",
        "pg_config": {
            name: {"name": name, "desc": "default_pg" if name == "0" else "", "ranks": str(list(ranks))}
            for name, ranks in groups.items()
        },
        "pg_status": {
            str(pg_id): {
                "last_enqueued_collective": enqueued,
                "last_started_collective": -1,
                "last_completed_collective": completed,
            }
            for pg_id, (enqueued, completed) in status.items()
        },
        "entries": calls,
    }


def late_rank(size: int = 4, late: int = 2, steps: int = 3, begun_s: float = 0.0) -> dict[int, Document]:
    """A job in which one rank has not come to the last collective; by rank. Its first call comes a second after it."""
    done = [call(step, at_s=begun_s + step) for step in range(1, steps + 1)]
    waits = call(steps + 1, state="scheduled", at_s=begun_s + steps + 1)
    groups = {"0": range(size)}
    return {rank: document(done if rank == late else [*done, waits], groups) for rank in range(size)}


def write(folder: Path, dumps: Mapping[int, Document], prefix: str = "nccl_trace_rank_") -> Path:
    """Write pickles of protocol 2, as torch does; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank, dump in dumps.items():
        (folder / f"{prefix}{rank}").write_bytes(pickle.dumps(dump, 2))
    return folder


def write_json(folder: Path, dumps: Mapping[int, Document], prefix: str = "rank_") -> Path:
    """Write JSON as torch does: texts for counters, 0 for no time, no key for no entries; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank, dump in dumps.items():
        (folder / f"{prefix}{rank}.json").write_text(json.dumps(_as_json(dump)))
    return folder


def _as_json(dump: Document) -> Document:
    status = {key: {name: str(count) for name, count in one.items()} for key, one in dump["pg_status"].items()}
    entries = [{key: 0 if value is None else value for key, value in entry.items()} for entry in dump["entries"]]
    written = {**dump, "pg_status": status, "entries": entries}
    return written if entries else {key: value for key, value in written.items() if key != "entries"}
