"""Fingerprints of calls that do not match, as `TORCH_DISTRIBUTED_DEBUG=DETAIL` compares them before each collective.

Each rank raises, with its own call and that of the first rank that differs. What it says of the other is right only
where both call the same operation: of others, torch up to 2.15 reads the wrong bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from otel_torchdist.evidence.lines import LogLine, statement
from otel_torchdist.evidence.model import MAX_TEXT, Called, Mismatched, Statement, StatementKind
from otel_torchdist.evidence.texts.watchdog import operation_of
from otel_torchdist.naming import readable

MARKERS: Final = (b"Detected mismatch between collectives on ranks",)
TITLE: Final = "Detected mismatch between collectives on ranks"
_CALL: Final = re.compile(
    r"Rank (?P<rank>\d{1,7}) is running (?:inconsistent )?collective: CollectiveFingerPrint\("
    r"(?:SequenceNumber=(?P<sequence>\d+))?(?:, )?OpType=(?P<operation>\w+)"
    r"(?:, TensorShape=\[(?P<shape>[\d, ]*)\], TensorDtypes=(?P<dtype>[\w ,]*), TensorDeviceTypes=)?"
)


def statements_of(line: LogLine, path: str) -> Iterator[Statement]:
    """Yield the calls that a line compares; nothing if it compares none."""
    if TITLE not in line.text:
        return
    calls = tuple(_called(found) for found in _CALL.finditer(line.text))[:2]
    if not calls:
        return
    text = f"{TITLE}: rank {calls[0].rank} calls {calls[0].text}"
    yield statement(
        line, path, StatementKind.DIFFERENT_CALLS, text, Mismatched(calls[0], calls[1] if len(calls) > 1 else None)
    )


def _called(found: re.Match[str]) -> Called:
    shape = found["shape"]
    return Called(
        rank=int(found["rank"]),
        operation=operation_of(found["operation"]),
        sequence=int(found["sequence"]) if found["sequence"] else None,
        shape=None if shape is None else readable(f"[{', '.join(shape.replace(',', ' ').split())}]", MAX_TEXT),
        dtype=readable((found["dtype"] or "").lower(), MAX_TEXT),
    )
