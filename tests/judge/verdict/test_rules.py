"""Waits that are no stalls: usual durations, announced waits, and ignored operations."""

import pytest

from otel_torchdist.config import Config
from otel_torchdist.judge.verdict.rules import StallRules
from otel_torchdist.model.names import CallSiteName
from otel_torchdist.model.reports.verdict_kinds import VerdictKind
from tests.support.worlds.detectors import EVERYBODY, THRESHOLD_S, Watching
from tests.support.worlds.fake_world import SECOND, FakeWorld, group_of


def late_world(late: int = 2) -> FakeWorld:
    """Build a world in which all ranks but one have been in an all_reduce since second 1."""
    world = FakeWorld(4)
    world.meet(EVERYBODY, 0.1)
    for rank in world.ranks:
        if rank.rank != late:
            rank.label = "evaluation"
            rank.enter(EVERYBODY, 1.0)
    return world


def test_late_rank_is_reported_without_rules() -> None:
    """Without rules, the world of these tests has a stall."""
    watching = Watching(late_world()).until(1 + THRESHOLD_S + 2)
    assert [event.verdict.ranks for _, event in watching.verdicts] == [(2,)]


def test_call_site_that_usually_takes_long() -> None:
    """The waiting call site usually takes half a minute: nothing is reported before."""
    world = FakeWorld(4)
    for rank in world.ranks[:3]:
        rank.tolerance_s = 30.0
        rank.enter(EVERYBODY, 1.0)
    watching = Watching(world).until(30.9)
    assert watching.reported == []
    watching.until(33.0)
    assert [event.verdict.ranks for _, event in watching.verdicts] == [(3,)]


def test_expected_by_the_rank_that_is_late() -> None:
    """The late rank has announced a wait until second 60. From then on the threshold counts."""
    world = late_world()
    world.ranks[2].expects_until_s = 60.0
    watching = Watching(world).until(60.0)
    assert watching.reported == []
    watching.until(60.0 + THRESHOLD_S + 2)
    assert [event.verdict.ranks for _, event in watching.verdicts] == [(2,)]


def test_ages_count_from_the_end_of_what_was_expected() -> None:
    """After an announcement ends, the whole threshold must pass."""
    world = late_world()
    world.ranks[2].expects_until_s = 24.0
    watching = Watching(world).until(24.0 + THRESHOLD_S - 0.5)
    assert watching.reported == []
    watching.until(24.0 + THRESHOLD_S + 2)
    assert [event.verdict.ranks for _, event in watching.verdicts] == [(2,)]


def test_expected_by_all_that_wait() -> None:
    """If all waiting ranks announced the wait, it is no stall; if one did not, it is."""
    world = late_world()
    for rank in (0, 1, 3):
        world.ranks[rank].expects_until_s = 1e6
    watching = Watching(world).until(100.0)
    assert watching.reported == []
    world.ranks[3].expects_until_s = 0.0
    watching.until(100.0 + THRESHOLD_S + 2)
    assert [event.verdict.ranks for _, event in watching.verdicts] == [(2,)]


def test_stopped_under_a_debugger_is_expected() -> None:
    """A frozen rank that has announced a long operation is not reported."""
    world = late_world()
    world.ranks[2].expects_until_s = 1e6
    world.ranks[2].stopped = "t"
    watching = Watching(world).until(60.0)
    assert watching.reported == []


def test_death_is_never_expected() -> None:
    """A rank that dies while it is expected to take long is reported at once."""
    world = late_world()
    world.ranks[2].expects_until_s = 1e6
    watching = Watching(world).until(5.0)
    world.ranks[2].die(5.0)
    watching.until(7.0)
    assert [event.verdict.kind for _, event in watching.verdicts] == [VerdictKind.DEAD]


@pytest.mark.parametrize("pattern", ["all_reduce", "all_*", "default_pg", "evaluation", "train.py:*"])
def test_what_is_to_be_left_alone(pattern: str) -> None:
    """Operations are ignored by name, group, label or call site."""
    watching = Watching(late_world(), ignored=["something_else", pattern]).until(100.0)
    assert watching.reported == []


def test_function_of_a_package_is_ignored() -> None:
    """Calls made by a package are ignored by the package's function, from any line of the program."""
    site = CallSiteName("validate", "/home/user/train.py", 7, "torchmetrics.gather_all_tensors")
    for pattern, is_ignored in (("torchmetrics.*", True), ("torchvision.*", False)):
        world = FakeWorld(2)
        world.ranks[0].enter(group_of(0, 1), 1.0, frames=(site,))
        watching = Watching(world, ignored=[pattern]).until(1 + THRESHOLD_S + 2)
        assert (watching.reported == []) is is_ignored


def test_patterns_that_fit_nothing_change_nothing() -> None:
    """A pattern must fit the whole of a name."""
    watching = Watching(late_world(), ignored=["reduce", "train.py"]).until(1 + THRESHOLD_S + 2)
    assert len(watching.verdicts) == 1


@pytest.mark.parametrize(("actions", "needed_s"), [("log", 10), ("log,dump", 40), ("callback:alarm:ring", 40)])
def test_what_timeouts_must_exceed(actions: str, needed_s: int) -> None:
    """Timeouts must exceed the threshold, plus the grace period if actions other than a warning are set."""
    config = Config.from_environment({"OTEL_PYTHON_TORCHDIST_ON_STALL": actions})
    assert StallRules.from_config(config).timeouts_exceed_ns == needed_s * SECOND
