"""Repeated training runs that a notebook's process starts."""

from __future__ import annotations

import pytest

from tests.jobs.thirdparty.conftest import needs
from tests.jobs.thirdparty.twins import TwinRunner


@pytest.mark.thorough
@pytest.mark.parametrize(
    "launchers",
    [
        pytest.param(["fork", "spawn"], id="torch"),
        pytest.param(["notebook_launcher"], marks=needs("accelerate"), id="accelerate"),
    ],
)
def test_training(twin_runner: TwinRunner, launchers: list[str]) -> None:
    """Each training is recorded whole, on tapes of its own, and nothing changes for it or for the notebook."""
    twins = twin_runner.run("notebook", 0, *launchers)
    twins.assert_training_is_untouched()
    assert len(twins.with_us.tapes) == 2 * len(launchers)
    assert len({tape.status.run_id for tape in twins.with_us.tapes}) == len(launchers)
    twins.assert_everything_is_recorded()
    twins.assert_nothing_is_wrong()
