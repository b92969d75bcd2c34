"""Groups that ranks have created in another order, in a job that goes on: its calls go with those of other groups."""

from otel_torchdist import semconv
from otel_torchdist.model.finding import Finding, FindingKind
from otel_torchdist.model.verdict_kinds import VerdictKind
from otel_torchdist.world.mismatch import Field
from tests.support.worlds.detectors import EVERYBODY, Watching
from tests.support.worlds.fake_world import FakeWorld
from tests.support.worlds.group_order import members_only, other_order


def findings(watching: Watching) -> list[Finding]:
    """The mismatches reported."""
    found = [event for _, event in watching.events if isinstance(event, Finding)]
    return [one for one in found if one.kind is FindingKind.MISMATCHED]


def field_of(found: Finding) -> Field:
    """What ranks disagree about."""
    return Field(found.attributes[semconv.MISMATCH_FIELD])


def go_on(world: FakeWorld, watching: Watching, seconds: int) -> None:
    """All ranks make a call each second."""
    for second in range(seconds):
        for rank in world.ranks:
            rank.end(rank.enter(EVERYBODY, second), second + 0.001)
        watching.until(second + 1.0)


def test_another_order_is_found_once() -> None:
    """Where nothing hangs, the rank that differs from all others is named once, for all groups that it concerns."""
    world, _ = other_order()
    watching = Watching(world)
    go_on(world, watching, 40)
    [found] = findings(watching)
    assert (field_of(found), found.ranks) == (Field.MEMBERS, (3,))
    assert found.sentence == (
        "rank 3 has created group 2 with ranks 2-3, where ranks 0-2 have created it with ranks 1,3: all ranks must "
        "create all groups, also those of others, in the same order; it did not hang, but results may be wrong"
    )


def test_verdict_is_not_followed_by_a_finding() -> None:
    """What a stall was blamed on is not reported again."""
    world, groups = other_order()
    watching = Watching(world)
    world.ranks[1].enter(groups[1]["n2"], 0.0)
    watching.until(40.0)
    assert {given.verdict.kind for _, given in watching.verdicts} == {VerdictKind.MISMATCHED}
    assert findings(watching) == []


def test_groups_of_members_only_are_no_finding() -> None:
    """Groups of the same number that share no member may have come about one after the other, and work."""
    world, _ = members_only()
    watching = Watching(world)
    go_on(world, watching, 40)
    assert findings(watching) == []
