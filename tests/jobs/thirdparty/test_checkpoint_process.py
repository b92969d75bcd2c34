"""A training whose checkpoints are written by separate processes, which create a process group of their own."""

from __future__ import annotations

import pytest

from otel_torchdist.model.kinds import TapeState
from tests.jobs.thirdparty.twins import TwinRunner, Twins
from tests.support.commands.running import Running

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def twins(twin_runner: TwinRunner) -> Twins:
    """The training, without us and with us."""
    return twin_runner.run("checkpoints", 2, "process")


def test_training(twins: Twins) -> None:
    """Nothing changes for the training, which is recorded like any other: its own tapes are the first ones."""
    twins.assert_training_is_untouched()
    own = twins.with_us.tapes_of_the_first_run()
    assert [tape.identity.rank for tape in own] == [0, 1]
    assert [tape.status.state for tape in own] == [TapeState.FINISHED] * 2
    twins.assert_everything_is_recorded(own)


def test_nothing_is_wrong(twins: Twins) -> None:
    """The processes that write are helpers: terminating them at the end is not a death of a rank."""
    twins.assert_nothing_is_wrong(twins.with_us.tapes_of_the_first_run())
    assert "dead" not in twins.with_us.log


def test_diagnosis(twins: Twins) -> None:
    """For the last job, `diagnose` reports on the training, and finds no fault."""
    diagnose = Running(twins.with_us.directory, "diagnose")
    code = diagnose.end()
    diagnose.close()
    assert code == 0, diagnose.story()
    first = twins.with_us.tapes_of_the_first_run()[0]
    assert f"run {first.status.run_id >> 96:08x}" in diagnose.out
