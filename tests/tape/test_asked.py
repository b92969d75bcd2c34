"""When a process was asked to end, as readers see it: on any machine, however long that has been up."""

from __future__ import annotations

from pathlib import Path

import pytest

from otel_torchdist.tape import seals
from otel_torchdist.tape.layout import LiveWord
from otel_torchdist.tape.reading.reader import TapeReader
from tests.support.tapes.tapes import new_writer

SECOND = 1_000_000_000
DAY = 86_400 * SECOND


@pytest.mark.parametrize("later_s", [-200 * 86_400, -30, 0, 0.5, 3_600], ids=lambda later: f"heartbeat {later} s later")
@pytest.mark.parametrize("days", [0.01, 203, 204, 407, 408, 500, 814.5, 4_000])
def test_time_of_the_request(memory: Path, days: float, later_s: float) -> None:
    """It is known to the microsecond, whether the last heartbeat came before the request or after it."""
    asked_ns = round(days * DAY) + 123_000
    writer = new_writer(memory)
    reader = TapeReader.of_writer(writer)
    heartbeat_us = max(asked_ns + round(later_s * SECOND), 0) // 1_000
    writer.view().cast("Q")[LiveWord.HEARTBEAT_US] = seals.seal_live(LiveWord.HEARTBEAT_US, heartbeat_us)
    writer.mark_asked(15, asked_ns)
    status = reader.status()
    assert (status.asked_signal, status.asked_ns) == (15, asked_ns)
    writer.close()


def test_no_request(memory: Path) -> None:
    """Without a request there is no time."""
    writer = new_writer(memory)
    writer.beat()
    status = TapeReader.of_writer(writer).status()
    assert (status.asked_signal, status.asked_ns) == (0, 0)
    writer.close()
