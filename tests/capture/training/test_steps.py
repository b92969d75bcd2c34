"""Where a training step ends: by `mark_step`, else by one optimizer, else by windows of collectives."""

from __future__ import annotations

import pytest

from tests.support.launch.jobs import Jobs

SCALES = {
    "scaled": [65536.0, 32768.0, 32768.0, 16384.0, 16384.0],
    "scaled_by_fsdp": [65536.0, 32768.0, 32768.0, 16384.0, 16384.0],
    "scaled_and_wrapped": [65536.0, 32768.0, 32768.0, 16384.0, 16384.0],
    "scaled_and_fused": [None, 32768.0, 32768.0, 16384.0, 16384.0],
}
"""Each other step overflows, beginning with the first. Fused optimizers are called without asking the scaler."""


@pytest.mark.parametrize(
    ("way", "sequences"),
    [
        ("one_optimizer", [3, 6, 9, 12, 15]),
        ("two_optimizers", [3, 6, 9, 12, 15]),
        ("zero", [3, 6, 9, 12, 15]),
        ("step_raises", [3, 6, 9, 12, 15]),
        ("begins_anew", [3, 6, 9, 12, 15]),
        ("phases", [3, 6, 54, 57, 60]),  # the sixteenth step of the second optimizer is the first that counts
        ("two_threads", [0, *range(3, 33, 3)]),
        ("in_backward", [3, 6, 9, 12, 15]),
        ("container", [3, 6, 9, 12, 15]),
        ("closures", [3, 6, 9, 12, 15]),
        ("scaled", [3, 6, 9, 12, 15]),
        ("scaled_by_fsdp", [4, 8, 12, 16, 20]),
        ("scaled_and_wrapped", [3, 6, 9, 12, 15]),
        ("scaled_and_fused", [3, 6, 9, 12, 15]),
        ("scaler_off", [3, 6, 9, 12, 15]),
        ("marked", [3, 6, 9, 12, 15]),  # the optimizer has ended the step of the first mark
        ("windows", [64, 128, 192, 256, 320]),
        ("windows_until_optimizer", [64, 67, 131, 195, 259]),
    ],
)
def test_steps(jobs: Jobs, way: str, sequences: list[int]) -> None:
    """Each way of training gives the expected steps, each with sequence and loss scale at its end."""
    [tape] = jobs.run("steps", 1, way).tapes
    assert [(mark.step, mark.sequence) for mark in tape.steps] == list(enumerate(sequences))
    assert tape.status.step == len(sequences)
    scales = SCALES.get(way, [None] * len(sequences))
    assert [mark.scale for mark in tape.steps] == scales
    for operation in tape.operations:
        assert operation.raw.step == sum(mark.number < operation.raw.number for mark in tape.steps)
        assert operation.raw.step == sum(mark.sequence < operation.raw.sequence for mark in tape.steps)
