"""Decodes an execution trace: what `ExecutionTraceObserver` writes, from which Chakra's traces are made."""

from __future__ import annotations

from typing import Final

import msgspec

from otel_torchdist.profiles.profile import DecodedTrace
from otel_torchdist.profiles.reading.document import TraceDocument, decoded, items_of
from otel_torchdist.profiles.reading.trace_nodes import Node, Nodes, matters


class _Name(msgspec.Struct, gc=False):
    name: str = ""


_NAMES: Final = msgspec.json.Decoder(_Name)
_NODES: Final = msgspec.json.Decoder(Node, strict=False)


def decode_execution_trace(document: TraceDocument, path: str, rank: int | None) -> DecodedTrace:
    """Decode a trace; the arguments are those of `decode_profile`.

    Raises:
        TraceError: It does not show of which rank it is.
    """
    nodes = Nodes()
    for part in items_of(document.nodes):
        try:
            if matters(_NAMES.decode(part).name):
                nodes.add(_NODES.decode(part))
        except (msgspec.DecodeError, RecursionError, ValueError, OverflowError) as error:
            nodes.leave_out(error)
    return nodes.trace(path, rank, decoded(document.pid, int, 0))
