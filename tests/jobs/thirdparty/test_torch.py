"""Training runs with torch's own features for large models, used in the way of other programs."""

from __future__ import annotations

import pytest

from tests.jobs.thirdparty.twins import TwinRunner


@pytest.mark.thorough
@pytest.mark.parametrize(("worker", "ranks", "arguments"), [("titan", 4, []), ("checkpoints", 2, ["thread"])])
def test_training(twin_runner: TwinRunner, worker: str, ranks: int, arguments: list[str]) -> None:
    """Nothing changes for the training, all of it is recorded, steps are the optimizer's, and nothing is reported."""
    twins = twin_runner.run(worker, ranks, *arguments)
    twins.assert_training_is_untouched()
    twins.assert_everything_is_recorded()
    twins.assert_nothing_is_wrong()
