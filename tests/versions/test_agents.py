"""A node agent that is upgraded on its own: ranks of one release under an agent of another, and its kept state."""

from __future__ import annotations

import pytest

from otel_torchdist.node.job.directory import CHECKPOINT_NAME, READER_LOCK_NAME
from otel_torchdist.system.files.locks import is_file_locked
from tests.support.tapes.directories import memory_directory
from tests.support.waiting import until
from tests.versions.jobs import RANKS, agent_of, ranks_of
from tests.versions.releases import Release

pytestmark = [pytest.mark.thorough, pytest.mark.rare]
WAIT_S = 60.0


@pytest.mark.parametrize("is_agent_other", [True, False], ids=["other agent", "other ranks"])
def test_ranks_under_an_agent(other: Release, this: Release, is_agent_other: bool) -> None:
    """With the same tape format the node's agent reads the ranks. With another it says why not, and makes way.

    The lock that it releases is the one for which ranks start an agent of their own version.
    """
    agents, ranks = (other, this) if is_agent_other else (this, other)
    with memory_directory() as base, ranks_of(ranks, base) as directory, agent_of(agents, base, "--watch") as output:
        if agents.formats["TAPE"] == ranks.formats["TAPE"]:
            until(lambda: f"found ranks 0-{RANKS - 1} of {RANKS}" in output.read_text(), WAIT_S)
            return
        until(lambda: f"{directory} is left to an agent of the ranks' version" in output.read_text(), WAIT_S)
        until(lambda: not is_file_locked(directory / READER_LOCK_NAME), WAIT_S)
        [line] = [line for line in output.read_text().splitlines() if "tapes cannot be read" in line]
        assert f"tape format {ranks.formats['TAPE']}, of " in line
        assert f"this is otel-torchdist {agents.version}, which reads tape format {agents.formats['TAPE']}: " in line
        with agent_of(ranks, base, "--run-dir", directory) as own:
            until(lambda: f"found ranks 0-{RANKS - 1} of {RANKS}" in own.read_text(), WAIT_S)


def test_state_that_an_agent_of_another_release_left(other: Release, this: Release) -> None:
    """With the same number of the state the next agent continues; with another, one line says what it does instead."""
    with memory_directory() as base, ranks_of(this, base) as directory:
        with agent_of(this, base, "--run-dir", directory, "--wait", "30") as output:
            until((directory / CHECKPOINT_NAME).exists, WAIT_S)
        with agent_of(other, base, "--run-dir", directory, "--wait", "30") as output:
            until(lambda: "reading " in output.read_text(), WAIT_S)
        said = [line for line in output.read_text().splitlines() if "state format" in line]
        if this.formats["STATE"] == other.formats["STATE"]:
            assert said == []
            assert "cannot be used" not in output.read_text()
            return
        [line] = said
        assert f"state format {this.formats['STATE']}, of otel-torchdist {this.version}; this is " in line
        assert "the tapes are read from their oldest records" in line
