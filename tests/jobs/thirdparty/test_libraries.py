"""Training runs with the Hugging Face Trainer, which uses Accelerate, and with Lightning."""

from __future__ import annotations

import os

import pytest

from tests.jobs.thirdparty.conftest import is_here, needs
from tests.jobs.thirdparty.twins import TwinRunner


@pytest.mark.thorough
@pytest.mark.parametrize(
    "worker",
    [
        pytest.param("hugging_face", marks=needs("transformers")),
        pytest.param("lightning_ddp", marks=needs("lightning")),
        pytest.param("lightning_fsdp", marks=needs("lightning")),
    ],
)
def test_training(twin_runner: TwinRunner, worker: str) -> None:
    """Nothing changes for the training, all of it is recorded, steps are the optimizer's, and nothing is reported."""
    twins = twin_runner.run(worker)
    twins.assert_training_is_untouched()
    twins.assert_everything_is_recorded()
    twins.assert_nothing_is_wrong()


@pytest.mark.parametrize("library", ["accelerate", "lightning", "transformers"])
def test_nothing_is_left_out(library: str) -> None:
    """In CI every library is installed: none of these tests is skipped unnoticed."""
    if not is_here(library):
        assert not os.environ.get("CI"), f"{library} is missing: `make` installs it with the extra `thirdparty`"
        pytest.skip(f"{library} is not installed: it has no release for this Python")
