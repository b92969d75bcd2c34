"""Groups whose members change: each membership is recorded as a separate group."""

from __future__ import annotations

import pytest
import torch.distributed as dist

from otel_torchdist.capture.core.groups.membership import Membership, find_membership
from tests.support.launch.jobs import Jobs

FIRST, SECOND = 1 << 40, (1 << 40) + 1
WORLD = (0, 1, 2, 3)


def test_numbers_of_two_memberships_never_mix(jobs: Jobs) -> None:
    """Two of three ranks continue without the third: their new group has the same name on both, and counts from 1."""
    if not hasattr(dist.ProcessGroup, "reconfigure"):
        pytest.skip("this torch cannot change the members of a group")
    job = jobs.run("reconfigures", 3)
    assert [done.lines() for done in job.ranks] == [
        [{"rank": 1, "total": 2.0}],
        [],
        [{"rank": 0, "total": 2.0}],
    ]
    before, after = (0, 1, 2), (2, 0)
    first = [("all_reduce", before, FIRST, number, -1) for number in range(1, 6)]
    second = [("all_reduce", after, SECOND, 1, -1), ("broadcast", after, SECOND, 2, 2)]
    for rank, tape in enumerate(job.tapes):
        recorded = [
            (one.name, one.group.ranks, one.group.epoch, one.raw.sequence, one.raw.peer) for one in tape.operations
        ]
        assert recorded == (first if rank == 1 else first + second)
        assert all(one.has_ended and one.group.aligned for one in tape.operations)
        made = [(one.name, one.group.ranks, one.group.epoch, one.has_ended) for one in tape.rendezvous]
        expected = [("init_process_group", before, -1, True), ("reconfigure", before, FIRST, True)]
        assert made == expected + ([] if rank == 1 else [("reconfigure", after, SECOND, True)])
    keys = [{one.group.key for one in tape.operations} for tape in job.tapes]
    assert keys[0] == keys[2] > keys[1]


def test_members_by_their_ranks_before() -> None:
    """Previous ranks identify global ranks, in any order of the new members."""
    handles = ["gloo:2:77:2:host:1", "gloo:0:77:0:host:1"]
    assert find_membership((4, 5, 6), handles[1], handles, 78) == Membership(78, (6, 4), True, 1)
    assert find_membership((4, 5, 6), "", handles, 78).group_rank == -1
    fresh = ["nccl2:0:-1:0:host:1", "nccl2:1:-1:1:host:1"]
    assert find_membership(WORLD, fresh[0], fresh, 0) == Membership(0, (0, 1), True, 0)


@pytest.mark.parametrize(
    "handles",
    [
        ["gloo:0:77:0:host:1", "gloo:1:-1:9:host:1"],
        ["gloo:0:77:0:host:1", "gloo:0:77:1:host:1"],
        ["gloo:0:77:0:host:1", "gloo:4:77:1:host:1"],
        ["opaque", "also opaque"],
    ],
    ids=["one is new", "the same rank twice", "a rank that was not there", "another backend's"],
)
def test_members_that_are_not_known(handles: list[str]) -> None:
    """If members are unknown, they are unknown on all members, which see the same handles. Only the size is known."""
    assert find_membership(WORLD, handles[0], handles, 78) == Membership(78, (0, 1), False, 0)
