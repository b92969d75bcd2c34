"""A tape with numbers that no rank writes: a warning for its user, not a line of the log for each of its records."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from otel_torchdist.tape.identity import identify
from otel_torchdist.tape.layout import How, RecordKind, RunIdState
from otel_torchdist.tape.writer import TapeWriter
from tests.agent.training import page_of
from tests.support.commands.running import Running
from tests.support.ranks.job_ranks import Ranks
from tests.support.receivers.otlp_receiver import OtlpReceiver
from tests.support.waiting import until

FORGED = 200
FORGED_JOB = "job-00000000000000ee"
SIZE = 2**64 - 1


def forge(writer: TapeWriter, sequence: int) -> None:
    """Enter and end an operation of an impossible size, and then end its step."""
    now = time.monotonic_ns()
    number = writer.begin(now, 0, sequence, SIZE, 0, 0, 0, 0, -1, 0, 1, RecordKind.OPERATION, 0)
    writer.complete(number, now, now + 1_000, How.CALL)
    writer.step_ended(0, now, sequence)


@pytest.mark.parametrize("exporter", ["otlp", pytest.param("torchdist_otlp_json", marks=pytest.mark.thorough)])
def test_one_warning(
    begin: Callable[..., Ranks],
    start: Callable[..., Running],
    base: Path,
    receiver: OtlpReceiver,
    tmp_path: Path,
    exporter: str,
) -> None:
    """200 impossible sequences and 200 impossible sizes are one warning, and the other job of the node is served."""
    ranks = begin(1)
    (base / FORGED_JOB).mkdir(mode=0o700)
    writer = TapeWriter(base / FORGED_JOB, identify(0, 0, 1, 4_096))
    writer.set_run_id(0xF0, RunIdState.AGREED)
    service = start(
        "agent",
        "--watch",
        OTEL_TRACES_EXPORTER=exporter,
        OTEL_PYTHON_TORCHDIST_OTLP_FILE=str(tmp_path / "spans.json"),
    )
    service.wait_for(f"reading {base / FORGED_JOB}")
    for sequence in range(1, FORGED + 1):
        forge(writer, sequence)
        forge(writer, 2**64 - sequence)
    ranks.meet(1)
    until(lambda: page_of(base).count("torchdist_up{") == 2)
    lost = f'torchdist_records_lost_total{{rank="0",run="00000000"}} {2 * FORGED}.0'
    until(lambda: lost in page_of(base))
    until((base / FORGED_JOB / "agent.checkpoint").exists)
    writer.close()
    service.process.terminate()
    assert service.end(40) == 0, service.story()
    refused = [line for line in service.out.splitlines() if "records are left out that no rank" in line]
    assert len(refused) == 1 and str(writer.path) in refused[0]
    assert "cannot be written" not in service.out + service.err
    assert "encode" not in service.out + service.err
    assert len((service.out + service.err).splitlines()) < 15, service.story()
