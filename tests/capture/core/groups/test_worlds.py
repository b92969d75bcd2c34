"""Standalone process groups: their tape, and that their ranks are never taken for ranks of the default group."""

from __future__ import annotations

from collections import Counter

from otel_torchdist.capture.core.groups.worlds import SHOWS_STORES
from otel_torchdist.capture.core.torch_api import store_location
from otel_torchdist.model.kinds import How
from otel_torchdist.node.job.worlds import worlds_beside
from tests.support.launch.jobs import Jobs
from tests.support.native.both_kernels import NATIVE_LATER
from tests.support.tapes.recorded import RecordedTape


def calls(tape: RecordedTape) -> Counter[tuple[str, str, bool, int]]:
    """Return the number of calls by operation, group, whether it is standalone, and this process's rank in it."""
    found = ((one.name, one.group.name, bool(one.group.world), one.group.world_rank) for one in tape.operations)
    return Counter(
        (name, group.partition(" on ")[0] if is_standalone else "", is_standalone, world_rank)
        for name, group, is_standalone, world_rank in found
    )


def by_objects(world_rank: int) -> tuple[str, bool, int]:
    """Return the expected group of a standalone process group made of objects: the default one without a store."""
    return ("world", True, world_rank) if SHOWS_STORES else ("", False, -1)


def test_worlds_beside_the_default_one(jobs: Jobs) -> None:
    """A rank keeps its tape when it creates standalone process groups.

    The tape has each call once, with the rank there.
    """
    tapes = jobs.run("worlds", 2, "beside").tapes
    assert [(tape.identity.rank, tape.identity.world_size, tape.identity.world) for tape in tapes] == [
        (0, 2, ""),
        (1, 2, ""),
    ]
    for tape in tapes:
        world_rank = 1 - tape.identity.rank
        assert calls(tape) == {
            ("all_reduce", "", False, -1): 3,
            ("broadcast", "transfer", True, world_rank): 3,
            ("broadcast", *by_objects(world_rank)): 3,
        }
    keys = [{one.group.key for one in tape.operations} for tape in tapes]
    assert keys[0] == keys[1]
    assert len(keys[0]) == 3
    listed = [worlds_beside([tape.path]) for tape in tapes]
    assert listed[0] == listed[1] == {one.group.world for one in tapes[0].operations if one.group.world}


@NATIVE_LATER
def test_worlds_that_are_made_again_and_again(jobs: Jobs) -> None:
    """A standalone process group for each update starts no tape. A recreated default group starts one."""
    tapes = jobs.run("worlds", 2, "again").tapes
    assert Counter(tape.identity.rank for tape in tapes) == {0: 2, 1: 2}
    for rank in (0, 1):
        of_rank = [one for tape in tapes if tape.identity.rank == rank for one in tape.operations]
        assert Counter((one.name, bool(one.group.world)) for one in of_rank) == {
            ("all_reduce", False): 6,
            ("broadcast", True): 5,
        }
        assert len({one.group.key for one in of_rank if one.group.world}) == 5


@NATIVE_LATER
def test_process_that_is_in_no_other_world(jobs: Jobs) -> None:
    """Without a default group, the tape starts with the first standalone group and has its rank.

    A second continues it.
    """
    tapes = jobs.run("worlds", 2, "alone").tapes
    assert sorted((tape.identity.rank, tape.identity.world_size) for tape in tapes) == [(0, 2), (1, 2)]
    for tape in tapes:
        assert tape.identity.world.startswith("transfer@")
        assert [one.name for one in tape.operations] == ["broadcast", "broadcast"]


def test_backends_that_are_called_themselves(jobs: Jobs) -> None:
    """Each call of a standalone backend is recorded once, in its own world. Torch's groups keep their own calls."""
    tapes = jobs.run("worlds", 2, "lone").tapes
    assert [(tape.identity.rank, tape.identity.world) for tape in tapes] == [(0, ""), (1, "")]
    for tape in tapes:
        world_rank = 1 - tape.identity.rank
        assert calls(tape) == {
            ("all_reduce", "", False, -1): 3,
            ("broadcast", *by_objects(world_rank)): 3,
            ("all_gather", *by_objects(world_rank)): 3,
            ("barrier", *by_objects(world_rank)): 3,
            ("recv" if world_rank else "send", *by_objects(world_rank)): 1,
        }
    assert len({one.group.key for tape in tapes for one in tape.operations}) == 2


@NATIVE_LATER
def test_every_method_of_a_backend(jobs: Jobs) -> None:
    """Each method of a backend is recorded as its operation, with reduce op and root, in every signature."""
    for tape in jobs.run("worlds", 2, "every_method").tapes:
        ends_with_message = ("recv", "", 0) if tape.identity.rank else ("send", "", 1)
        assert [
            (one.name, one.signature.reduce_op, one.raw.peer) for one in tape.operations if one.how != "FAILED"
        ] == [
            *[("all_reduce", "max", -1)] * 3,
            *[("broadcast", "", 1)] * 2,
            *[("all_gather", "", -1)] * 2,
            ("all_gather_into_tensor", "", -1),
            ("reduce", "max", 1),
            ("gather", "", 0),
            ("scatter", "", 0),
            ("reduce_scatter", "sum", -1),
            ("all_to_all_single", "", -1),
            ("barrier", "", -1),
            ends_with_message,
        ]


@NATIVE_LATER
def test_process_that_has_a_backend_only(jobs: Jobs) -> None:
    """The tape of a process with only a standalone backend starts with that backend."""
    tapes = jobs.run("worlds", 2, "only_backend").tapes
    assert sorted((tape.identity.rank, tape.identity.world_size) for tape in tapes) == [(0, 2), (1, 2)]
    assert [[one.name for one in tape.operations] for tape in tapes] == [["all_reduce"], ["all_reduce"]]


class Inner:
    """A store with a port."""

    port = 29500


class Outer:
    """A prefix around another store."""

    underlying_store = Inner()


def test_place_of_a_store() -> None:
    """A store is located through all its prefixes. Without port and path, its location is unknown."""
    assert store_location(Outer()) == "port 29500"
    assert store_location(object()) == ""


@NATIVE_LATER
def test_host_of_the_store_has_a_tape_while_it_waits(jobs: Jobs) -> None:
    """The host of the store has one tape for all its attempts, which shows where it waits and how that ends.

    A group that is created afterwards is one operation, which started when the rank looked for the store.
    """
    job = jobs.run("launches", 1)
    found = job.ranks[0].line()
    first, second = sorted(job.tapes, key=lambda tape: tape.identity.realtime_ns)
    assert found["tapes"] == [str(first.path)] * 2
    assert [operation.raw.how for operation in first.rendezvous] == [How.FAILED] * 2
    assert [operation.raw.sequence for operation in first.rendezvous] == [1, 1]
    assert [operation.failure for operation in first.rendezvous] == found["failures"]
    for operation in first.rendezvous:
        assert operation.name == "init_process_group"
        assert (operation.group.backend, operation.group.ranks) == ("", (0, 1))
        assert operation.group.address.startswith("127.0.0.1:")
    [created] = second.rendezvous
    assert (created.raw.how, created.group.backend, created.group.nth) == (How.CALL, "gloo", 0)
    assert [operation.group for operation in second.operations] == [created.group]
