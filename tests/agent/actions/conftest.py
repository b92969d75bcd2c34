"""The tape of a rank, and a stall on it."""

from __future__ import annotations

from pathlib import Path

import pytest

from otel_torchdist.agent.actions.stalled_run import StalledRun
from otel_torchdist.tape.reading.reader import TapeReader
from otel_torchdist.telemetry import semconv
from tests.agent.actions.ongoing import TEXT, ongoing
from tests.support.tapes.fake_tape import RUN_ID, FakeTape


@pytest.fixture
def tape(tmp_path: Path) -> TapeReader:
    """The tape of a rank of this run."""
    (tmp_path / "job").mkdir()
    return FakeTape(tmp_path / "job").reader


@pytest.fixture
def stall(tape: TapeReader) -> StalledRun:
    """A stall, as actions receive it."""
    nonces = frozenset({tape.identity.nonce})
    trace_id = f"{ongoing(tape).ruling.incident.trace_id:032x}"
    found = {semconv.VERDICT: "absent", semconv.VERDICT_RANKS: "2"}
    return StalledRun(
        f"{RUN_ID:032x}", trace_id, "absent", "2", TEXT, found, tape.path.parent, nonces, (tape.identity.rank,)
    )
