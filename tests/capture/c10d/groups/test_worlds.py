"""Worlds that a program makes by hand: which tape they are on, and that their ranks are no ranks of the default one."""

from __future__ import annotations

from collections import Counter

from otel_torchdist.capture.torch_api import store_place
from otel_torchdist.job.worlds import worlds_beside
from tests.support.launch.jobs import Jobs
from tests.support.tapes.recorded import RecordedTape


def calls(tape: RecordedTape) -> Counter[tuple[str, str, bool, int]]:
    """How often a rank has called what in which group; whether that is of a world made by hand, and its rank there."""
    found = ((one.name, one.group.name, bool(one.group.world), one.group.here) for one in tape.operations)
    return Counter(
        (name, group.partition(" on ")[0] if by_hand else "", by_hand, here) for name, group, by_hand, here in found
    )


def test_worlds_beside_the_default_one(jobs: Jobs) -> None:
    """A rank that makes other worlds has left none: one tape has all its calls, each once, with its rank there."""
    tapes = jobs.run("worlds", 2, "beside").tapes
    assert [(tape.identity.rank, tape.identity.world_size, tape.identity.world) for tape in tapes] == [
        (0, 2, ""),
        (1, 2, ""),
    ]
    for tape in tapes:
        here = 1 - tape.identity.rank
        assert calls(tape) == {
            ("all_reduce", "", False, -1): 3,
            ("broadcast", "transfer", True, here): 3,
            ("broadcast", "world", True, here): 3,
        }
    keys = [{one.group.key for one in tape.operations} for tape in tapes]
    assert keys[0] == keys[1]
    assert len(keys[0]) == 3
    listed = [worlds_beside([tape.path]) for tape in tapes]
    assert listed[0] == listed[1] == {one.group.world for one in tapes[0].operations if one.group.world}


def test_worlds_that_are_made_again_and_again(jobs: Jobs) -> None:
    """A world for each update takes no tape, and a default group that is made anew begins one, as ever."""
    tapes = jobs.run("worlds", 2, "again").tapes
    assert Counter(tape.identity.rank for tape in tapes) == {0: 2, 1: 2}
    for rank in (0, 1):
        of_rank = [one for tape in tapes if tape.identity.rank == rank for one in tape.operations]
        assert Counter((one.name, bool(one.group.world)) for one in of_rank) == {
            ("all_reduce", False): 6,
            ("broadcast", True): 5,
        }
        assert len({one.group.key for one in of_rank if one.group.world}) == 5


def test_process_that_is_in_no_other_world(jobs: Jobs) -> None:
    """Its tape begins with the first such world, and has its rank there; a second one ends nothing."""
    tapes = jobs.run("worlds", 2, "alone").tapes
    assert sorted((tape.identity.rank, tape.identity.world_size) for tape in tapes) == [(0, 2), (1, 2)]
    for tape in tapes:
        assert tape.identity.world.startswith("transfer@")
        assert [one.name for one in tape.operations] == ["broadcast", "broadcast"]


class Inner:
    """A store that shows a port."""

    port = 29500


class Outer:
    """A store within another one."""

    underlying_store = Inner()


def test_place_of_a_store() -> None:
    """A store is known by the innermost one, and one that shows nothing by nothing."""
    assert store_place(Outer()) == "port 29500"
    assert store_place(object()) == ""
