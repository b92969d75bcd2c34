"""Log lines on waits at the job's store: for barriers, for clients, and for NCCL's id, which the first rank stores.

`distributed_c10d.py` logs its store-based barrier since torch 1.8: with `worker_count` until 2.0, `num_workers_joined`
since then.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from otel_torchdist.model.text import readable
from otel_torchdist.sources.evidence.facts import BarrierArrival, Fact, StoreWait
from otel_torchdist.sources.evidence.lines import LineFormat, LogLine, statement
from otel_torchdist.sources.evidence.statements import MAX_TEXT, Statement, StatementKind

_BARRIER: Final = re.compile(
    r"n store based barrier (?:to initialize process group for [\d.e-]* ?(?:seconds)?|on )rank:? (?P<rank>\d{1,7}),"
    r" (?:for )?key: (?P<key>\S+) \(world_size=(?P<size>\d{1,7}),"
    r" (?:worker_count|num_workers_joined)=(?P<joined>\d{1,7})"
)
_OLD_BARRIER: Final = re.compile(
    r"n store based barrier to initialize process group for rank: (?P<rank>\d{1,7}), key: (?P<key>\S+)"
    r" \(world_size=(?P<size>\d{1,7}), (?:worker_count|num_workers_joined)=(?P<joined>\d{1,7})"
)
_ADDED: Final = re.compile(r"Added key: (?P<key>\S+) to store for rank: (?P<rank>\d{1,7})")
_COMPLETED: Final = re.compile(
    r"Rank (?P<rank>\d{1,7}): Completed store-based barrier for key:\s?(?P<key>\S+) with (?P<size>\d{1,7}) nodes"
)
_UNIQUE_ID: Final = re.compile(
    r"\[(?P<waiter>\d{1,7})\] is setting up \w+ communicators? and (?:retrieving|retreiving) \w+ from "
    r"(?:\[(?P<writer>\d{1,7})\]|roots) via (?:c10d key-value store|TCPStore) by key '(?P<key>[^']{0,256})'"
    r"(?:, but store->get\('[^']*'\) got error: (?P<error>.{1,200}))?"
)
_CLIENTS: Final = re.compile(
    r"Timed out after (?P<seconds>\d+) seconds waiting for clients\. (?P<joined>\d+)/(?P<size>\d+) clients joined"
)
_CONNECT: Final = re.compile(
    r"client socket has (?:timed out after (?P<after>\d+ ?ms|\S+) while trying to connect to"
    r"|failed to connect to any network address of) \((?P<host>[^,()]{1,256}), (?P<port>\d{1,5})\)"
)
_TIMEOUT: Final = re.compile("timeout|Timeout|timed out")


def _read_store(line: LogLine, path: str) -> Iterator[Statement]:
    """Yield statements on ranks that wait at the store, or cannot connect to it; none for other lines."""
    template = statement(line, path, StatementKind.AT_STORE, "")
    barrier = _at_barrier(line.text)
    if barrier is not None:
        yield replace(template, text=f"{barrier.joined} at {barrier.key}", rank=barrier.rank, fact=barrier)
    unique_id = _UNIQUE_ID.search(line.text)
    if unique_id is not None:
        yield _awaits_id(template, unique_id)
    clients = _CLIENTS.search(line.text)
    if clients is not None:
        joined, size = clients["joined"], clients["size"]
        text = f"hosts the store, and waited {clients['seconds']} s for its clients: {joined} of {size} have joined"
        yield replace(template, kind=StatementKind.WAITS_AT_STORE, text=text)
    connect = _CONNECT.search(line.text)
    if connect is not None:
        after = f" within {connect['after']}" if connect["after"] else ""
        text = f"could not connect to the store at {connect['host']}, port {connect['port']}{after}"
        yield replace(template, kind=StatementKind.WAITS_AT_STORE, text=readable(text, MAX_TEXT))


def _awaits_id(template: Statement, match: re.Match[str]) -> Statement:
    """Return a statement on a rank that waits for NCCL's id, which the first rank of its group stores."""
    error = (match["error"] or "").strip()
    fact: Fact = StoreWait(int(match["waiter"]), int(match["writer"] or 0), not error or bool(_TIMEOUT.search(error)))
    lost = "" if fact.is_timeout else f", and lost the store: {error}"
    text = f"waited for NCCL's id, which rank {fact.writer} of its group stores (key '{match['key']}'){lost}"
    return replace(template, kind=StatementKind.WAITS_AT_STORE, text=readable(text, MAX_TEXT), fact=fact)


def _at_barrier(text: str) -> BarrierArrival | None:
    """Return a rank's arrival at a barrier, or its completion; None for other lines."""
    match = _BARRIER.search(text) or _OLD_BARRIER.search(text)
    if match is not None:
        return BarrierArrival(
            readable(match["key"], MAX_TEXT), int(match["rank"]), int(match["size"]), int(match["joined"])
        )
    match = _COMPLETED.search(text)
    if match is not None:
        size = int(match["size"])
        return BarrierArrival(readable(match["key"], MAX_TEXT), int(match["rank"]), size, size, is_over=True)
    match = _ADDED.search(text)
    return BarrierArrival(readable(match["key"], MAX_TEXT), int(match["rank"])) if match is not None else None


STORE: Final = LineFormat(
    (
        b"n store based barrier",
        b"d store-based barrier",
        b"store_based_barrier_key",
        b"from [0] via",
        b"niqueIds from roots",
        b"waiting for clients",
        b"while trying to connect to (",
        b"any network address of (",
    ),
    _read_store,
)
