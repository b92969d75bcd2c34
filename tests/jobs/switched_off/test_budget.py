"""A rank over its overhead budget records less, by steps, and never loses an operation."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from otel_torchdist.model.kinds import ActivityKind
from otel_torchdist.model.recording_level import RecordingLevel
from tests.agent.training import page_of
from tests.jobs.torchrun.recording import TWO_RANKS, switched_on
from tests.support.launch.torchrun import Torchrun
from tests.support.launch.warm_python import Done, WarmPython
from tests.support.native.native_library import environ_of
from tests.support.tapes.recorded import RecordedTape, read_tapes
from tests.support.waiting import until

WORKER = Path(__file__).parent / "workers" / "trains_on.py"
TINY = {"OTEL_PYTHON_TORCHDIST_OVERHEAD_BUDGET": "0.001", "OTEL_METRICS_EXPORTER": "prometheus"}
SECOND = 1_000_000_000
LOG = re.compile(r"recording took .*% of the last steps of rank (\d)")

Start = Callable[[dict[str, str]], Torchrun]


@pytest.fixture
def start(warm_python: WarmPython, tmp_path: Path) -> Iterator[Start]:
    """Starts a training of two ranks with its agent."""
    started: list[Torchrun] = []

    def run(environ: dict[str, str]) -> Torchrun:
        settings = {**switched_on(tmp_path / "tapes"), "OTEL_PYTHON_TORCHDIST_AGENT_LINGER": "1000", **environ}
        started.append(Torchrun(warm_python, tmp_path / "output", [*TWO_RANKS, WORKER, tmp_path], settings))
        return started[-1]

    yield run
    for torchrun in started:
        torchrun.close()


def wait_for_level(torchrun: Torchrun, base: Path, level: RecordingLevel) -> None:
    """Wait until both ranks have a level, on `/metrics`, too."""
    found = re.compile(rf"^torchdist_recording_level\{{.*\}} {level:d}\.0$", re.MULTILINE)
    until(lambda: len(found.findall(page_of(base))) == 2, 100, lambda: torchrun.log)


def check_all_operations(tapes: list[RecordedTape], done: Done) -> None:
    """Check that the newest operations have consecutive numbers, up to gloo's last count."""
    reports = sorted(done.lines(), key=lambda line: line["rank"])
    for tape, report in zip(tapes, reports, strict=True):
        sequences = [operation.raw.sequence for operation in tape.operations]
        assert sequences == list(range(sequences[0], report["issued"] + 1))
        assert len(sequences) > 100
        steps = [mark.step for mark in tape.steps]
        assert steps == list(range(steps[0], steps[0] + len(steps)))


@pytest.mark.thorough
def test_levels_in_python(start: Start, tmp_path: Path) -> None:
    """First values are not checked any more, then intervals and lines are left out; operations are all there."""
    base = tmp_path / "tapes"
    torchrun = start({**TINY, **environ_of("python"), "OTEL_PYTHON_TORCHDIST_NUMERICS": "all"})
    wait_for_level(torchrun, base, RecordingLevel.NO_VALUES)
    wait_for_level(torchrun, base, RecordingLevel.NO_CALL_SITES)
    time.sleep(2.5)  # it applies a second after its announcement
    (tmp_path / "finish").touch()
    done = torchrun.end()
    assert done.code == 0, done.err
    assert sorted(LOG.findall(done.err)) == ["0", "1"]
    assert done.err.count("first without checks of values in tensors") == 2
    tapes = read_tapes(base)
    assert [tape.status.recording_level for tape in tapes] == [RecordingLevel.NO_CALL_SITES] * 2
    check_all_operations(tapes, done)
    for tape in tapes:
        last = tape.operations[-1].raw
        optimizers = [one for one, _ in tape.activities if one.kind is ActivityKind.OPTIMIZER_STEP]
        assert tape.operations[-1].function == ""
        assert not [one for one in optimizers if one.entered_ns > last.entered_ns - SECOND]


@pytest.mark.thorough
def test_levels_natively(start: Start, tmp_path: Path) -> None:
    """Natively only intervals are left out, because lines cost nothing there; operations and steps are all there."""
    base = tmp_path / "tapes"
    torchrun = start({**TINY, "OTEL_PYTHON_TORCHDIST_OVERHEAD_BUDGET": "0.0001", **environ_of("native")})
    wait_for_level(torchrun, base, RecordingLevel.NO_INTERVALS)
    (tmp_path / "finish").touch()
    done = torchrun.end()
    assert done.code == 0, done.err
    assert sorted(LOG.findall(done.err)) == ["0", "1"]
    tapes = read_tapes(base)
    check_all_operations(tapes, done)
    for tape in tapes:
        assert tape.operations[-1].function == "main"
