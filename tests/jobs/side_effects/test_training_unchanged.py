"""What a training can observe of itself is as without us: random numbers, compiled code, time beside a busy thread."""

from __future__ import annotations

import pytest

from tests.jobs.side_effects.conftest import Run
from tests.support.launch.quiet import QUIET

EXPORTS_SPANS = {
    **QUIET,
    "OTEL_TRACES_EXPORTER": "otlp",
    "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
    "OTEL_PYTHON_TORCHDIST_READER": "thread",  # where the exporters are in the training's own process
}
WAITS_ALLOWED = 3.5
"""Waits for the GIL per operation. A kernel in Python cannot do without two: it needs the GIL when C++ calls it,
and again when the backend, which runs without, returns. When the next operation finds that this one has ended, torch
releases the GIL twice for a moment, for the future's value and for the end of the Work; the other thread takes it then
more or less often, as the machine's wake-ups are quick or slow. 0.5 to 3.1 were measured."""
ATTEMPTS = 3
"""A machine that is busy elsewhere can distort a measurement."""


def test_random_numbers(run: Run) -> None:
    """With everything on and an endpoint that is overloaded, no global generator moves: Python's, NumPy's, torch's."""
    said = run("random_numbers", environ=EXPORTS_SPANS).ranks[0].line()
    assert said == {"untouched": [True] * 3, "after_a_draw": [False] * 3}


@pytest.mark.thorough
def test_compiled_before_us(run: Run) -> None:
    """Functions that were compiled before we were switched on are not compiled again, nor when we are switched off.

    And where values are looked at, Dynamo does not compile what looks at them either.
    """
    plain = run("compiled_before", 1, "off")
    for ours in (run("compiled_before", 1, "on"), run("compiled_before", 1, "looking")):
        assert ours.ranks[0].lines() == plain.ranks[0].lines()
        first, *later = ours.ranks[0].lines()
        assert later == [first] * 2
        [tape] = ours.tapes
        assert [operation.name for operation in tape.operations] == ["all_reduce"] * 6


@pytest.mark.thorough
def test_beside_a_busy_thread(run: Run) -> None:
    """Beside a thread that computes in Python, DDP's backward waits for the GIL no more than any kernel requires."""
    measured: list[float] = []
    while not measured or (min(measured) >= WAITS_ALLOWED and len(measured) < ATTEMPTS):
        said = run("hungry").ranks[0].line()
        assert said["operations"] == 16
        measured.append(said["waits_added"])
    assert min(measured) < WAITS_ALLOWED
