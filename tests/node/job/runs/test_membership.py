"""Which tapes make a run: the rules, and that the watcher of live ranks and the list of past runs follow the same."""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from otel_torchdist.judge.world.assembly import worlds
from otel_torchdist.judge.world.following.follower import TapeFollower
from otel_torchdist.model.kinds import RunIdState
from otel_torchdist.model.rank_state.lives import Lifetime
from otel_torchdist.node.job.runs.membership import RunMember, RunParentage, helped_runs, of_living_runs, sort_into_runs
from otel_torchdist.node.job.runs.runs import index_of, member_of
from otel_torchdist.tape import seals
from otel_torchdist.tape.identity import identify
from otel_torchdist.tape.layout import LiveWord
from otel_torchdist.tape.reading.reader import TapeReader
from otel_torchdist.tape.writer import TapeWriter

FIRST, SECOND = 0x1A << 120, 0x1B << 120
S = 1_000_000_000
HERE = Path("/dev/shm/jobs/job-1")


def member(
    rank: int,
    run: int,
    life: tuple[int, int],
    *,
    alive: bool = False,
    sure: bool = True,
    helper: bool = False,
    world_size: int = 2,
) -> RunMember:
    """A rank that is known to have lived from one second to another."""
    began_s, seen_s = life
    return RunMember(1000, HERE, world_size, helper, rank, run, Lifetime(began_s * S, seen_s * S, alive, sure))


def sorted_names(**tapes: RunMember) -> dict[int, list[str]]:
    """The names of the tapes of each run, by its id."""
    return {key.run: sorted(ranks.values()) for key, ranks in sort_into_runs(tapes).items()}


def test_rank_without_an_id_is_of_the_run_that_it_lived_alongside() -> None:
    """Whether or not any of them still lives, so that nothing changes when the last one dies."""
    for alive in (False, True):
        found = sorted_names(a=member(0, FIRST, (0, 9), alive=alive), b=member(1, 0, (1, 5)))
        assert found == {FIRST: ["a", "b"]}


def test_rank_without_an_id_is_not_of_a_run_before_or_after_it() -> None:
    """Launchers start an attempt when the previous one is gone."""
    assert sorted_names(a=member(0, FIRST, (0, 3)), b=member(1, 0, (4, 5))) == {FIRST: ["a"], 0: ["b"]}
    assert sorted_names(a=member(0, FIRST, (4, 9), alive=True), b=member(1, 0, (0, 3))) == {FIRST: ["a"], 0: ["b"]}


def test_rank_without_an_id_that_may_be_of_two_runs_is_of_none() -> None:
    """No guess is made."""
    found = sorted_names(a=member(0, FIRST, (0, 9)), b=member(0, SECOND, (2, 9)), c=member(1, 0, (3, 5)))
    assert found == {FIRST: ["a"], SECOND: ["b"], 0: ["c"]}


def test_rank_without_an_id_is_of_no_other_job() -> None:
    """A run of helpers, or of another size, is another job's, and a run that has this rank lacks nothing."""
    run = member(0, FIRST, (0, 9))
    for other in (member(1, 0, (1, 5), helper=True), member(1, 0, (1, 5), world_size=4), member(0, 0, (1, 5))):
        assert sorted_names(a=run, b=other) == {FIRST: ["a"], 0: ["b"]}


def test_what_an_attempt_has_left_is_not_of_the_next_one() -> None:
    """With an id that may be the last attempt's, what was over before the youngest of them began does not count."""
    old, new = member(0, FIRST, (0, 3)), member(1, FIRST, (4, 9), sure=False)
    assert sorted_names(old=old, new=new) == {FIRST: ["new"]}
    assert sorted_names(old=old, new=new._replace(life=new.life._replace(id_is_sure=True))) == {FIRST: ["new", "old"]}


def test_live_rank_is_of_this_attempt_however_old_its_heartbeat_is() -> None:
    """Native code that holds the GIL stops heartbeats."""
    found = sorted_names(held=member(0, FIRST, (0, 0), alive=True), new=member(1, FIRST, (4, 9), sure=False))
    assert found == {FIRST: ["held", "new"]}


def test_one_tape_of_each_rank() -> None:
    """The one that lives, or the newest."""
    a, b = member(0, FIRST, (0, 9)), member(0, FIRST, (1, 9))
    assert sorted_names(a=a, b=b) == {FIRST: ["b"]}
    assert sorted_names(a=a._replace(life=a.life._replace(alive=True)), b=b) == {FIRST: ["a"]}


def test_leftovers_beside_a_run_that_lives() -> None:
    """A reader that begins takes the run that lives, with its dead; everything if nothing lives."""
    over, dead, stray = member(0, FIRST, (0, 3)), member(1, SECOND, (4, 5)), member(1, 0, (0, 3))
    tapes = {"over": over, "lives": member(0, SECOND, (4, 9), alive=True), "dead": dead, "stray": stray}
    assert of_living_runs(tapes) == ["lives", "dead"]
    del tapes["lives"]
    assert of_living_runs(tapes) == ["over", "dead", "stray"]


def test_helpers_of_helpers_help_the_run_of_the_ranks() -> None:
    """Directly or not; a run with more ranks than the one that started it is independent, and has helpers itself."""
    ranks, helper = RunParentage(frozenset({1}), frozenset(), 1), RunParentage(frozenset({2}), frozenset({1}), 1)
    helpers_helper = RunParentage(frozenset({3}), frozenset({2}), 1)
    spawned, their_helper = (
        RunParentage(frozenset({4}), frozenset({1}), 4),
        RunParentage(frozenset({5}), frozenset({4}), 4),
    )
    assert helped_runs([helpers_helper, helper, ranks, spawned, their_helper]) == [2, 2, None, None, 3]


class Drawn(NamedTuple):
    """A tape to be written."""

    rank: int
    run: int
    id_state: RunIdState
    began_s: int
    lived_s: int
    alive: bool
    parent: int
    world_size: int


TAPES = st.lists(
    st.builds(
        Drawn,
        rank=st.integers(0, 2),
        run=st.sampled_from([FIRST, SECOND]),
        id_state=st.sampled_from(RunIdState),
        began_s=st.integers(0, 12),
        lived_s=st.integers(0, 8),
        alive=st.booleans(),
        parent=st.sampled_from([0, 0, 0, 7]),
        world_size=st.sampled_from([3, 3, 3, 4]),
    ),
    max_size=6,
    unique_by=lambda drawn: drawn.began_s,
)


def write(directory: Path, drawn: Drawn) -> TapeWriter:
    """Write the tape of a rank that dies at once unless it lives."""
    began_ns = (1000 + drawn.began_s) * S
    known = identify(drawn.rank, drawn.rank, drawn.world_size, 64, parent=drawn.parent)
    writer = TapeWriter(directory, dataclasses.replace(known, monotonic_ns=began_ns))
    if drawn.id_state is not RunIdState.NONE:
        writer.set_run_id(drawn.run, drawn.id_state)
    beat_us = (began_ns + drawn.lived_s * S) // 1000
    writer.view().cast("Q")[LiveWord.HEARTBEAT_US] = seals.seal_live(LiveWord.HEARTBEAT_US, beat_us)
    if not drawn.alive:
        writer.close()
    return writer


@given(TAPES)
def test_watcher_and_list_of_runs_agree(tapes: list[Drawn]) -> None:
    """On the same tapes both find the same ranks in the same runs, but for dead ranks that never knew their run."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        writers = [write(directory, one) for one in tapes]
        readers = [TapeReader.of_writer(writer) for writer in writers]
        watched = {
            (world.run, rank, view.nonce)
            for world in worlds([TapeFollower(reader) for reader in readers], 2000 * S)
            for rank, view in world.ranks.items()
            if world.run or view.alive
        }
        runs = sort_into_runs({reader: member_of(reader) for reader in readers})
        listed = {
            (key.run, rank, reader.identity.nonce)
            for key, ranks in runs.items()
            for rank, reader in ranks.items()
            if key.run or reader.is_alive()
        }
        assert watched == listed
        for writer in writers:
            writer.close()


@given(TAPES)
def test_list_of_runs_is_that_of_the_rules(tapes: list[Drawn]) -> None:
    """What `diagnose` opens by itself, after the end of all ranks, is sorted alike."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        writers = [write(directory, one._replace(alive=False)) for one in tapes]
        index = index_of([directory])
        found = {(run.run_id, tape.identity.nonce) for run in index.runs for tape in run.tapes}
        runs = sort_into_runs({one: member_of(one) for one in map(TapeReader.of_writer, writers)})
        assert found == {(key.run, one.identity.nonce) for key, ranks in runs.items() for one in ranks.values()}
        index.close()
