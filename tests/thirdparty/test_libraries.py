"""Trainings with Accelerate, the Trainer of Hugging Face and Lightning."""

from __future__ import annotations

import pytest

from tests.thirdparty.conftest import needs
from tests.thirdparty.twins import TwinRunner


@pytest.mark.parametrize(
    "worker",
    [
        pytest.param("accelerated", marks=needs("accelerate")),
        pytest.param("hugging_face", marks=needs("transformers")),
        pytest.param("lightning_ddp", marks=needs("lightning")),
    ],
)
def test_training(twin_runner: TwinRunner, worker: str) -> None:
    """Nothing changes for the training, all of it is recorded, steps are the optimizer's, and nothing is said."""
    twins = twin_runner.run(worker)
    twins.assert_training_is_untouched()
    twins.assert_everything_is_recorded()
    twins.assert_nothing_is_wrong()
