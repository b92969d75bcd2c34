"""A node as a whole: named where all of its ranks are, and only then."""

from __future__ import annotations

import pytest

from otel_torchdist.model.verdict_kinds import VerdictKind
from otel_torchdist.verdict.model import locate
from otel_torchdist.verdict.wording.sentence import sentence
from tests.support.worlds.fake_world import FakeWorld, group_of
from tests.support.worlds.judging import the_verdict

WORLD = group_of(*range(6), description="default_pg")


def missing(hosts: str, *missing: int) -> str:
    """The sentence about a world in which some ranks have not come; a letter for the host of each rank."""
    world = FakeWorld(6)
    for rank, host in zip(world.ranks, hosts, strict=True):
        rank.host = f"node-{host}"
    world.meet(WORLD, 0.0)
    for rank in world.ranks:
        if rank.rank not in missing:
            rank.enter(WORLD, 5.0)
    snapshot = world.snapshot(30.0)
    verdict = the_verdict(snapshot)
    assert (verdict.kind, verdict.ranks) == (VerdictKind.ABSENT, missing)
    return sentence(locate(snapshot, verdict), 25.0)


def test_all_ranks_of_a_node() -> None:
    """Where several ranks are named, and they are those of one node, that is in the sentence."""
    assert missing("aabbcc", 2, 3).startswith(
        "ranks 2-3 have not entered all_reduce (sequence 2, default_pg) for 25.0 s; rank 2 was last in all_reduce, "
        "called in train at train.py:42; 4 of 6 ranks wait in train at train.py:42. They are all ranks of node-b; "
    )


@pytest.mark.parametrize(
    ("hosts", "ranks"),
    [("aabbbc", (2, 3)), ("aabbcc", (2, 3, 4)), ("aabbcc", (1, 2)), ("abbbbb", (0,)), ("aaaaaa", (2, 3))],
    ids=["not all of a node", "more than a node", "of two nodes", "a node of one rank", "only one node"],
)
def test_anything_else(hosts: str, ranks: tuple[int, ...]) -> None:
    """In all other cases no node is named: the ranks say it all, or the node is not at fault."""
    assert "node-" not in missing(hosts, *ranks)
