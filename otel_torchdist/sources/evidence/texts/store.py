"""Waits at the job's store: its barriers, its clients, and the id that NCCL's first rank leaves there for the others.

`distributed_c10d.py` has logged its store-based barrier since torch 1.8: `worker_count` until 2.0, `num_workers_joined`
since then.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from otel_torchdist.model.naming import readable
from otel_torchdist.sources.evidence.facts import AtBarrier, Awaited, Fact
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
    r"\[(?P<waits>\d{1,7})\] is setting up \w+ communicators? and (?:retrieving|retreiving) \w+ from "
    r"(?:\[(?P<holder>\d{1,7})\]|roots) via (?:c10d key-value store|TCPStore) by key '(?P<key>[^']{0,256})'"
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


def _statements_of(line: LogLine, path: str) -> Iterator[Statement]:
    """Yield what a line says about who waits at the store, or does not reach it; nothing for other lines."""
    blank = statement(line, path, StatementKind.AT_STORE, "")
    barrier = _at_barrier(line.text)
    if barrier is not None:
        yield replace(blank, text=f"{barrier.joined} at {barrier.key}", rank=barrier.rank, fact=barrier)
    unique_id = _UNIQUE_ID.search(line.text)
    if unique_id is not None:
        yield _awaits_id(blank, unique_id)
    clients = _CLIENTS.search(line.text)
    if clients is not None:
        joined, size = clients["joined"], clients["size"]
        text = f"hosts the store, and waited {clients['seconds']} s for its clients: {joined} of {size} have joined"
        yield replace(blank, kind=StatementKind.WAITS_AT_STORE, text=text)
    connect = _CONNECT.search(line.text)
    if connect is not None:
        after = f" within {connect['after']}" if connect["after"] else ""
        text = f"could not connect to the store at {connect['host']}, port {connect['port']}{after}"
        yield replace(blank, kind=StatementKind.WAITS_AT_STORE, text=readable(text, MAX_TEXT))


def _awaits_id(blank: Statement, found: re.Match[str]) -> Statement:
    """Return a rank that waits for NCCL's id, which the first rank of its group leaves in the store."""
    error = (found["error"] or "").strip()
    fact: Fact = Awaited(int(found["waits"]), int(found["holder"] or 0), not error or bool(_TIMEOUT.search(error)))
    lost = "" if fact.is_timeout else f", and lost the store: {error}"
    text = f"waited for NCCL's id, which rank {fact.holder} of its group gives (key '{found['key']}'){lost}"
    return replace(blank, kind=StatementKind.WAITS_AT_STORE, text=readable(text, MAX_TEXT), fact=fact)


def _at_barrier(text: str) -> AtBarrier | None:
    """Return a rank that has come to a barrier, waits there, or has left it; None if the line is about none."""
    found = _BARRIER.search(text) or _OLD_BARRIER.search(text)
    if found is not None:
        return AtBarrier(readable(found["key"], MAX_TEXT), int(found["rank"]), int(found["size"]), int(found["joined"]))
    found = _COMPLETED.search(text)
    if found is not None:
        size = int(found["size"])
        return AtBarrier(readable(found["key"], MAX_TEXT), int(found["rank"]), size, size, is_over=True)
    found = _ADDED.search(text)
    return AtBarrier(readable(found["key"], MAX_TEXT), int(found["rank"])) if found is not None else None


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
    _statements_of,
)
