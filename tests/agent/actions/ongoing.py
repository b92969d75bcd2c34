"""A stall that is ongoing, and what was logged about it."""

from __future__ import annotations

import pytest

from otel_torchdist.judge.stall.events import OngoingStall, Ruling
from otel_torchdist.model.calls import Channel, OperationId
from otel_torchdist.model.kinds import RecordKind
from otel_torchdist.model.reports.incident import Incident
from otel_torchdist.tape.reading.reader import TapeReader
from otel_torchdist.telemetry import semconv
from tests.support.tapes.fake_tape import RUN_ID

TEXT = "rank 2 has not entered all_reduce (sequence 7, default_pg) for 12.0 s"


def ongoing(tape: TapeReader, name: str = "first", is_ours: bool = True) -> OngoingStall:
    """A stall."""
    site = OperationId(Channel(RecordKind.OPERATION, "abcd1234"), 7)
    attributes = {semconv.VERDICT: "absent", semconv.VERDICT_RANKS: "2"}
    return OngoingStall(
        Ruling(Incident(RUN_ID, name), 1, site, TEXT, attributes), is_ours, frozenset({tape.identity.nonce})
    )


def reported(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was logged about actions."""
    return [text for text in caplog.messages if text.startswith("on stall: ")]
