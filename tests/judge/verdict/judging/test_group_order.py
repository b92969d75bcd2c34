"""Groups created in different orders, so that one of torch's numbers belongs to different groups on different ranks."""

import dataclasses

import pytest

from otel_torchdist.judge.verdict.verdict import Verdict
from otel_torchdist.judge.verdict.wording.calls import describe_creations
from otel_torchdist.judge.verdict.wording.sentence import describe_verdict
from otel_torchdist.judge.world.divergence import CallSide, Divergence
from otel_torchdist.judge.world.mismatch import Field
from otel_torchdist.model.kinds import How
from otel_torchdist.model.names import CallSiteName
from otel_torchdist.model.reports.verdict_kinds import VerdictKind
from tests.support.worlds.fake_world import group_of
from tests.support.worlds.group_order import members_only, other_order
from tests.support.worlds.judging import located_verdict, named


def fields(verdict: Verdict) -> tuple[VerdictKind, tuple[int, ...], Field | None]:
    """Return the fields of a verdict."""
    return verdict.kind, verdict.ranks, verdict.mismatch.field if verdict.mismatch is not None else None


def test_members_that_create_only_their_own_groups() -> None:
    """If only members create their group, its first operation is blamed on that, not on a rank's process or device."""
    world, groups = members_only()
    world.ranks[0].enter(groups[0], 1.0)
    world.ranks[3].end(world.ranks[3].enter(groups[3], 1.0), 1.1)
    verdict = located_verdict(world.snapshot(25.0))
    assert fields(verdict) == (VerdictKind.MISMATCHED, (0, 1, 2, 3), Field.MEMBERS)
    assert describe_verdict(verdict, 24).startswith(
        "ranks 1-2 have created group 1 with ranks 1-2, where ranks 0,3 have created it with ranks 0,3; "
    )


def test_group_that_works_is_not_blamed() -> None:
    """A group whose members have met works, whatever the numbers of other groups: its next stall has another cause."""
    world, groups = members_only()
    for rank in (0, 3):
        world.ranks[rank].end(world.ranks[rank].enter(groups[rank], 1.0), 1.1)
    world.ranks[0].enter(groups[0], 2.0)
    assert named(world.snapshot(25.0)) == (VerdictKind.ABSENT, (3,))


def test_rank_that_creates_groups_in_another_order_is_named() -> None:
    """Rank 3 alone differs, and is named even if operations have ended: they paired with other groups' calls."""
    world, groups = other_order()
    for rank, name in ((1, "n2"), (3, "n4")):
        world.ranks[rank].end(world.ranks[rank].enter(groups[rank][name], 1.0), 1.1)
    world.ranks[1].enter(groups[1]["n2"], 2.0)
    verdict = located_verdict(world.snapshot(25.0))
    assert fields(verdict) == (VerdictKind.MISMATCHED, (3,), Field.MEMBERS)
    assert describe_verdict(verdict, 23).startswith(
        "rank 3 has created group 2 with ranks 2-3, where ranks 0-2 have created it with ranks 1,3; "
    )


@pytest.mark.parametrize(
    ("here", "there", "said"),
    [
        (None, None, "ranks 2-3, where ranks 0-2 have created it with ranks 1,3"),
        (8, 8, "ranks 2-3, where ranks 0-2 have created it with ranks 1,3 at build, a.py:8"),
        (9, 8, "ranks 2-3 at build, a.py:9, where ranks 0-2 have created it with ranks 1,3 at build, a.py:8"),
    ],
    ids=["unknown lines", "one line", "two lines"],
)
def test_lines_that_created_groups(here: int | None, there: int | None, said: str) -> None:
    """A line common to all ranks is stated once, different lines with their ranks."""
    world, groups = other_order()
    world.ranks[1].enter(groups[1]["n2"], 2.0)
    world.ranks[3].end(world.ranks[3].enter(groups[3]["n4"], 1.0), 1.1)
    mismatch = located_verdict(world.snapshot(25.0)).mismatch
    assert mismatch is not None
    sites = [CallSiteName("build", "/home/ada/a.py", line) if line else None for line in (there, here)]
    ways = Divergence(tuple(CallSide("new_group", site=site) for site in sites))
    described = describe_creations(dataclasses.replace(mismatch, divergence=ways))
    assert described == f"rank 3 has created group 2 with {said}"


def test_numbers_that_have_begun_anew_are_not_compared() -> None:
    """After a second init_process_group, numbers restart, and ranks may be in different worlds."""
    world, groups = members_only()
    again = group_of(0, 1, 2, 3, nth=1, description="default_pg")
    world.ranks[1].groups[again.key] = again
    for rank in (0, 3):
        world.ranks[rank].enter(groups[rank], 1.0)
    assert located_verdict(world.snapshot(25.0)).kind is VerdictKind.TRANSPORT


def test_rank_that_does_not_come_to_the_first_operation() -> None:
    """A rank missing in a group's first operation is absent, whatever the numbers of other groups."""
    world, groups = members_only()
    world.ranks[0].enter(groups[0], 1.0)
    assert named(world.snapshot(25.0)) == (VerdictKind.ABSENT, (3,))


def test_failed_first_operation() -> None:
    """A first operation that raised is blamed on the creation too, not on ranks that were ended."""
    world, groups = members_only()
    for rank in (0, 3):
        world.ranks[rank].end(world.ranks[rank].enter(groups[rank], 1.0), 1.5, how=How.FAILED)
        world.ranks[rank].die(2.0)
    world.ranks[1].enter(groups[1], 1.0)
    world.ranks[2].enter(groups[2], 1.0)
    verdict = located_verdict(world.snapshot(25.0))
    assert fields(verdict)[0] is VerdictKind.MISMATCHED
