"""Packs activities in ranks, which need nothing of what reads them."""

from __future__ import annotations

from otel_torchdist.model.kinds import ActivityKind, RecordKind
from otel_torchdist.tape import layout


def prepare_activity(kind: ActivityKind, detail: int, thread: int, message_bytes: int = 0) -> bytes:
    """Pack an activity for `TapeWriter.begin_prepared`; its sequence is its parent's number.

    The arguments are those of `activities.Activity`.
    """
    return layout.PAYLOAD_TAIL.pack(message_bytes, 0, kind, 0, detail, -1, 0, thread, RecordKind.ACTIVITY, 0, 0, 0)
