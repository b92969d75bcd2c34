"""Worlds whose ranks have not created the same groups in the same order."""

from dataclasses import replace

from otel_torchdist.model.calls import GroupView
from tests.support.worlds.fake_world import FakeWorld, group_of

EVERYBODY = group_of(0, 1, 2, 3, description="default_pg")


def created(world: FakeWorld, rank: int, **groups: tuple[int, ...]) -> dict[str, GroupView]:
    """The groups that a rank has created, by the number under which it has done so, `n1` and so on."""
    found = {name: group_of(*ranks) for name, ranks in groups.items()}
    named = {name: replace(one, name=replace(one.name, name=name[1:])) for name, one in found.items()}
    for group in (EVERYBODY, *named.values()):
        world.ranks[rank].groups[group.key] = group
    return named


def members_only() -> tuple[FakeWorld, dict[int, GroupView]]:
    """Ranks 0 and 3 have created their group, ranks 1 and 2 theirs, and none that of the others."""
    world = FakeWorld(4)
    pairs = {rank: (0, 3) if rank in (0, 3) else (1, 2) for rank in range(4)}
    return world, {rank: created(world, rank, n1=ranks)["n1"] for rank, ranks in pairs.items()}


def other_order() -> tuple[FakeWorld, list[dict[str, GroupView]]]:
    """Rank 3 has created the groups of experts before those of data, all others after them."""
    world = FakeWorld(4)
    return world, [
        created(world, 0, n1=(0, 2), n3=(0, 1)),
        created(world, 1, n2=(1, 3), n3=(0, 1)),
        created(world, 2, n1=(0, 2), n4=(2, 3)),
        created(world, 3, n2=(2, 3), n4=(1, 3)),
    ]
