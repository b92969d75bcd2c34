"""Tapes and run ids across several default groups and when capture is switched on and off; torch is restored."""

from __future__ import annotations

import pytest

from deploy.native.ports import free_port
from otel_torchdist.model.kinds import Flag, RunIdState, TapeState
from tests.support.launch.forked_ranks import ORDINARY_END
from tests.support.launch.jobs import Jobs
from tests.support.native.both_kernels import NATIVE_LATER
from tests.support.tapes.recorded import RecordedTape


def run_ids(tapes: list[RecordedTape]) -> list[int]:
    """The run id of each tape."""
    return [tape.status.run_id for tape in tapes]


def sequences(tape: RecordedTape, description: str) -> list[int]:
    """Sequence numbers of a group's operations."""
    return [operation.raw.sequence for operation in tape.operations if operation.group.description == description]


@NATIVE_LATER
def test_created_again(jobs: Jobs) -> None:
    """Each new default group has its own tape and run id, the same on both ranks. Groups are counted from 0 again."""
    tapes = jobs.run("created_again", 2, environ={ORDINARY_END: "true"}).tapes
    first, second = tapes[:3], tapes[3:]
    assert run_ids(first) == run_ids(second)
    assert len(set(run_ids(first))) == 3
    for attempt, (mine, others) in enumerate(zip(first, second, strict=True)):
        keys = [operation.group.key for operation in mine.operations]
        assert keys == [operation.group.key for operation in others.operations]
        assert [keys.count(key) for key in dict.fromkeys(keys)] == [attempt + 1, 1, 1]
        assert sequences(mine, "default_pg") == list(range(1, attempt + 2))
        for tape in (mine, others):
            assert tape.status.run_id_state is RunIdState.AGREED
            assert tape.status.state is TapeState.FINISHED
            assert [rendezvous.name for rendezvous in tape.rendezvous] == [
                "init_process_group",
                "new_group",
                "new_group",
            ]


@NATIVE_LATER
def test_device_mesh_only(jobs: Jobs) -> None:
    """Groups of meshes are recorded from the start, with their dimension's name. All ranks agree on run ids."""
    environ = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    tapes = jobs.run("meshes", 4, environ=environ).tapes
    assert len(set(run_ids(tapes))) == 1
    rows, columns = [(0, 1), (2, 3)], [(0, 2), (1, 3)]
    for rank, tape in enumerate(tapes):
        row, column = rows[rank // 2], columns[rank % 2]
        used = [(one.group.description, one.group.ranks, one.raw.sequence) for one in tape.operations]
        assert used[:3] == [("mesh_tp", row, 1), ("mesh_dp", column, 1), ("mesh_dp", column, 2)]
        assert used[3][1:] == ((0, 1, 2, 3), 1)
        assert all(operation.group.aligned for operation in tape.operations)
        assert [one.name for one in tape.rendezvous[:3]] == ["init_process_group", "new_group", "new_group"]
        assert tape.status.run_id_state is RunIdState.AGREED


@NATIVE_LATER
def test_id_of_an_attempt_before(jobs: Jobs) -> None:
    """A leftover id in the store is provisional. After the first collective, rank 0's new id is used."""
    job = jobs.run("stale_run_id", 2)
    assert job.ranks[1].line() == {"first": 0xDEAD}
    [run_id] = set(run_ids(job.tapes))
    assert run_id != 0xDEAD


def test_switched_on_and_off_in_mid_life(jobs: Jobs) -> None:
    """Groups that are older than the recording are unaligned, later ones are not.

    Switching off restores torch completely.
    """
    job = jobs.run("switched_on_late", 2)
    for done in job.ranks:
        while_on, while_off, at_the_end = done.lines()
        assert while_on == {"changed_while_on": ["dispatch", "hooks", "attributes"]}
        assert while_off == {"changed_while_off": []}
        assert at_the_end == {"changed_at_the_end": []}
    tapes = job.tapes
    assert len(tapes) == 4
    for first, second in (tapes[:2], tapes[2:]):
        alignment = {one.group.description: one.group.aligned for one in first.operations}
        assert alignment == {"default_pg": False, "early": False, "late": True}
        # Two, the barrier, and the one in flight when capture ended.
        assert sequences(first, "default_pg") == [1, 2, 3, 4]
        assert first.operations[-1].how in ("open", "POLL")
        assert {one.group.description: one.group.aligned for one in second.operations} == {
            "default_pg": False,
            "late": False,
        }
        assert sequences(second, "default_pg") == [1, 2]
        assert first.status.state is second.status.state is TapeState.FINISHED
    assert run_ids(tapes[:2]) == run_ids(tapes[2:])
    assert len(set(run_ids(tapes))) == 2


def test_no_store_to_agree_in(jobs: Jobs) -> None:
    """If the store cannot be cloned, the rank makes its own id, marked as unagreed. Fake operations are never stuck."""
    fake, ready_made = jobs.run("no_store").tapes
    assert fake.status.run_id_state is RunIdState.UNAGREED
    assert fake.status.run_id
    assert [(one.how, one.group.ranks) for one in fake.operations] == [
        ("WAIT", tuple(range(8))),
        ("open", tuple(range(8))),
    ]
    assert (ready_made.identity.rank, ready_made.identity.world_size) == (2, 3)


def test_coalesced(jobs: Jobs) -> None:
    """Operations in a coalescing block are marked, and end or fail with the block's Work."""
    [tape] = jobs.run("coalesces").tapes
    ends = [(one.name, one.how, one.failure, Flag.COALESCED in one.raw.flags) for one in tape.operations]
    assert ends == [
        ("broadcast", "WAIT", "", True),
        ("all_gather", "WAIT", "", True),
        ("reduce", "FAILED", "RuntimeError", True),
        ("all_reduce", "WAIT", "", False),
    ]
    assert [one.raw.sequence for one in tape.operations] == [1, 2, 3, 4]


def test_without_a_collector(jobs: Jobs) -> None:
    """With Python's garbage collector disabled, the memory and descriptors of an ended tape are released."""
    [line] = jobs.run("no_collector").ranks[0].lines()
    assert {tapes for tapes, _ in line["found"]} == {0}
    assert len({descriptors for _, descriptors in line["found"][1:]}) == 1


def test_groups_that_are_split_off(jobs: Jobs) -> None:
    """Split groups are identified by their order of creation, the same on all ranks. Their creation is recorded."""
    job = jobs.run("splits", 2)
    refused = [line for one in job.ranks for line in one.lines()]
    if refused:
        pytest.skip(refused[0]["refused"])
    common = [("default_pg", 0, (0, 1), "gloo"), ("a", 1, (0, 1), "gloo"), ("b", 2, (0, 1), "gloo")]
    for tape, made in zip(job.tapes, ([*common, ("alone", 0, (0,), "gloo")], common), strict=True):
        groups = [one.group for one in tape.rendezvous]
        assert [(one.description, one.nth, one.ranks, one.backend) for one in groups] == made
        assert [one.name for one in tape.rendezvous] == ["init_process_group"] + ["split_group"] * (len(made) - 1)
        assert all(one.has_ended for one in tape.rendezvous)
        assert {one.group.description for one in tape.named("all_reduce")} == {"a", "b"}
