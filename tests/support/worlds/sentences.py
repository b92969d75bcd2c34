"""The verdict on a simulated world, with places and in words."""

from otel_torchdist.model.calls import OperationId
from otel_torchdist.model.snapshot import WorldSnapshot
from otel_torchdist.verdict.model import Verdict, locate
from otel_torchdist.verdict.wording.sentence import sentence
from tests.support.worlds import judging
from tests.support.worlds.fake_world import FakeWorld, group_of

EVERYBODY = group_of(0, 1, 2, 3, description="default_pg")


def the_verdict(world: WorldSnapshot) -> Verdict:
    """The only verdict to which every waiting operation leads, with places."""
    return locate(world, judging.the_verdict(world))


def spoken(world: WorldSnapshot, verdict: Verdict) -> str:
    """The verdict's sentence."""
    return sentence(verdict, (world.taken_ns - verdict.since_ns) / 1e9)


def late_world(*late: int, size: int = 4) -> FakeWorld:
    """All ranks but `late` have been in an all_reduce since second 10."""
    world = FakeWorld(size)
    world.meet(EVERYBODY, 1.0)
    for rank in set(range(size)) - set(late):
        world.ranks[rank].enter(EVERYBODY, 10.0)
    return world


def operation_id_of(world: FakeWorld, rank: int) -> OperationId:
    """Where a rank waits."""
    return next(iter(world.ranks[rank].open.values())).operation_id
