"""Jobs under torchrun that end suddenly: which rank the agent names, and which `diagnose` does from what is on disk."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from concurrent.futures import Future

import pytest

from tests.jobs.faults.ends.endings import VARIANTS, WAYS, Ending, observe_ending, observe_kill
from tests.jobs.faults.ends.kills import ask, blames, launched
from tests.jobs.faults.outcome import Outcome
from tests.support.launch.nodes import nodes, why_not
from tests.support.launch.side_by_side import params_of, selected, side_by_side
from tests.support.launch.warm_python import WarmPython


@pytest.mark.thorough
def test_rank_is_killed(warm_python: WarmPython) -> None:
    """The rank killed in a busy loop of collectives is named, and how long before the others, which end 0.1 s later."""
    outcome = observe_kill(warm_python, others_end=True)
    assert not outcome.problems, "\n".join(outcome.problems)
    assert "was killed by SIGKILL 0." in outcome.sentence


@pytest.mark.thorough
def test_rank_is_killed_under_the_usual_torchrun() -> None:
    """The same holds where nothing in torchrun is changed for the tests."""
    outcome = observe_kill(None)
    assert not outcome.problems, "\n".join(outcome.problems)


@pytest.mark.thorough
@pytest.mark.parametrize("is_cancelled", [False, True])
def test_rank_gets_sigterm(warm_python: WarmPython, is_cancelled: bool) -> None:
    """No innocent rank is named, whether one rank got SIGTERM or torchrun did."""
    victim, said = ask(random.Random(), warm_python, is_cancelled)
    assert blames(None if is_cancelled else victim, said) == []


@pytest.mark.thorough
@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_rank_is_killed_on_one_of_two_nodes(warm_python: WarmPython) -> None:
    """The judging agent learns of the death from the other agent, on its own clock."""
    with nodes(2) as two:
        outcome = observe_kill(warm_python, two)
    assert not outcome.problems, "\n".join(outcome.problems)


@pytest.mark.thorough
@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_rank_leaves_on_one_of_two_nodes(warm_python: WarmPython) -> None:
    """The judging agent, and `diagnose` on both nodes, name the rank whose script ended early on the other node."""
    with nodes(2) as two, launched(warm_python, two) as job:
        job.order(2, "return")
        said = job.said()
    assert said.agent == (("absent", "2"),), said.sentences
    assert said.sentences[0].startswith("rank 2 has exited with code 0 before all_reduce"), said.sentences
    assert said.disk == [("absent", [2])] * 2


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest, warm_python: WarmPython) -> Iterator[Mapping[str, Future[Outcome]]]:
    """The reports of each ending."""
    with side_by_side(lambda ending: observe_ending(ending, warm_python), selected(request, "ending")) as outcomes:
        yield outcomes


@pytest.mark.parametrize("ending", params_of(WAYS, VARIANTS))
def test_ending(ending: Ending, outcomes: Mapping[str, Future[Outcome]]) -> None:
    """A death names the rank that died first; a cancelled job blames no rank; a verdict on a hang stands."""
    outcome = outcomes[ending.title].result()
    assert not outcome.problems, "\n".join([*outcome.problems, outcome.sentence])
