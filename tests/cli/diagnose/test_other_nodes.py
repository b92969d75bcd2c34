"""On one of several nodes: everything may be caused by ranks that have no tape here."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from otel_torchdist.agent.results import AgentsVerdicts
from otel_torchdist.judge.stall.events import OngoingStall, Ruling
from otel_torchdist.judge.verdict.past.post_mortem import examine
from otel_torchdist.judge.verdict.rules import StallRules
from otel_torchdist.judge.verdict.verdict import Verdict
from otel_torchdist.model.calls import Channel, OperationId
from otel_torchdist.model.kinds import How, RecordKind, TapeState
from otel_torchdist.model.rank_state.lives import Death
from otel_torchdist.model.reports.incident import Incident
from otel_torchdist.node.job.kept_results import remove_agents_verdict
from otel_torchdist.node.job.runs.lives import write_death
from otel_torchdist.tape.reading.reader import TapeReader
from tests.support.commands.asking import ask
from tests.support.commands.running import Running
from tests.support.tapes.fake_tape import RUN_ID, SECOND, WORLD, FakeTape
from tests.support.worlds.fake_world import RUN, START_NS, THRESHOLD_NS, FakeWorld, group_of
from tests.support.worlds.fake_world import FakeRank as WorldRank

TERM, RAISED, KILL = int(signal.SIGTERM), 1 << 8, int(signal.SIGKILL)
EVERYBODY = group_of(0, 1, 2, 3)
HERE = (2, 3)
LATER_NS = START_NS + 100 * SECOND
SENTENCE = "rank 0 was killed by SIGKILL 0.16 s before the others ended"


def end(rank: WorldRank, is_ahead: bool, is_interrupted: bool, status: int | None, is_seen: bool, at_s: float) -> None:
    """End a process in an `all_reduce`, or in the next: by the launcher, or by the exception that interrupted it."""
    number = rank.enter(EVERYBODY, 19.9)
    if is_ahead:
        rank.end(number, 19.95)
        number = rank.enter(EVERYBODY, 19.96)
    if is_interrupted:
        rank.end(number, 20.0, How.FAILED, "RuntimeError")
    failed = is_interrupted and status == RAISED
    state, failure = (TapeState.FAILED, "RuntimeError") if failed else (TapeState.RUNNING, "")
    if is_seen:
        rank.is_seen_to_die(at_s, status, state, failure)
    else:
        rank.die(at_s, state, failure)


def verdict_here(world: FakeWorld) -> Verdict | None:
    """The verdict of `diagnose` on the node of ranks 2 and 3, all of which are gone."""
    views = [world.ranks[rank].view(20.5) for rank in HERE]
    return examine(RUN, len(world.ranks), views, StallRules(THRESHOLD_NS), LATER_NS).verdict


ENDS = [(True, RAISED, True), (True, TERM, True), (True, None, False), (False, TERM, True), (False, None, True)]
ENDS += [(False, None, False)]
"""Whether it was interrupted in the operation, its wait status, and whether an agent has seen that."""


@pytest.mark.parametrize(("second", "third"), [*itertools.product(ENDS, repeat=2)])
def test_rank_that_ended_with_others_is_not_named(
    second: tuple[bool, int | None, bool], third: tuple[bool, int | None, bool]
) -> None:
    """Each of two ranks was interrupted, or ended by the launcher, in the same operation or the next: in any order."""
    for places in itertools.product((False, True), repeat=2):
        for times in ((20.1, 20.2), (20.2, 20.1)):
            world = FakeWorld(4)
            world.meet(EVERYBODY, 1.0)
            for rank, is_ahead, how, at_s in zip(HERE, places, (second, third), times, strict=True):
                end(world.ranks[rank], is_ahead, *how, at_s)
            assert verdict_here(world) is None


@pytest.mark.parametrize("status", [KILL, RAISED])
def test_first_death_of_its_own(status: int) -> None:
    """A rank that was killed, or raised an exception of its own, is named although other nodes are not seen."""
    world = FakeWorld(4)
    world.meet(EVERYBODY, 1.0)
    end(world.ranks[3], False, True, RAISED, True, 20.2)
    failed = (TapeState.FAILED, "ValueError") if status == RAISED else (TapeState.RUNNING, "")
    world.ranks[2].is_seen_to_die(20.0, status, *failed)
    verdict = verdict_here(world)
    assert verdict is not None
    assert verdict.ranks == (2,)


# --- on disk ----------------------------------------------------------------------------------------------------


@pytest.fixture
def directory(base: Path) -> Path:
    """The directory of a job."""
    path = base / "job-000000000000000a"
    path.mkdir(mode=0o700)
    return path


@pytest.fixture
def job(directory: Path) -> Path:
    """The directory of a job on this node: rank 2 was interrupted, and the launcher has ended rank 3."""
    now_ns = time.monotonic_ns()
    begun_ns = now_ns - SECOND // 2
    for rank, status in ((2, RAISED), (3, TERM)):
        one = FakeTape(directory, rank)
        one.run(at=now_ns - 3 * SECOND, lasts=SECOND // 1000)
        number = one.begin(at=begun_ns, sequence=2)
        if rank == 2:
            one.writer.complete(number, begun_ns, now_ns, How.FAILED, one.writer.names.intern("RuntimeError"))
        write_death(one.writer.path, Death(now_ns + rank, status=status))
        one.die()
    return directory


def ruling(sequence: int = 2) -> Ruling:
    """The ruling of the agent that judges."""
    channel = Channel(RecordKind.OPERATION, WORLD.key)
    found = {"torchdist.verdict": "dead", "torchdist.ranks": "0", "torchdist.operation": "all_reduce"}
    return Ruling(Incident(RUN_ID, "name", 0), 1, OperationId(channel, sequence), SENTENCE, found)


def receive(directory: Path, *, sequence: int = 2) -> None:
    """Have this node's agent hear the ruling, and that it is over once the ranks here are gone."""
    tapes = [TapeReader(path) for path in sorted(directory.glob("*.tape"))]
    nonces = frozenset(tape.identity.nonce for tape in tapes)
    verdicts = AgentsVerdicts()
    verdicts.update([OngoingStall(ruling(sequence), is_ours=False, nonces=nonces)], tapes)
    verdicts.update([], tapes)
    for tape in tapes:
        tape.close()


def document(base: Path) -> dict[str, Any]:
    """The output of `diagnose --json`."""
    return ask(base, "--json").document


def test_undecided(base: Path, job: Path) -> None:
    """Without the agents' verdict it is stated plainly that these tapes do not decide it."""
    found = document(base)
    assert (found["verdict"], found["problem"]) == (None, True)
    assert found["undecided"] == "ranks 0-1 have no tape on this node, and ranks here may have ended because of them"
    assert ask(base).has("undecided  ranks 0-1 have no tape on this node, and ranks here may .* because of them")


def test_agents_have_reported_it(base: Path, job: Path) -> None:
    """The verdict that this node's agent has received is shown, with its origin."""
    receive(job)
    found = document(base)
    verdict = found["verdict"]
    assert (verdict["kind"], verdict["ranks"], verdict["source"]) == ("dead", [0], "agents")
    assert (verdict["sentence"], found["undecided"]) == (SENTENCE, None)
    said = ask(base)
    assert said.code == 1
    assert said.has(f"verdict  {SENTENCE}")
    assert said.has(r"  and    reported by the agents of all nodes, as of \d\d:.*")


def test_stall_that_was_over(base: Path, job: Path) -> None:
    """A verdict that a dead agent left on an earlier stall, which these ranks have come out of, is not used."""
    receive(job, sequence=0)
    assert document(base)["verdict"] is None


@pytest.mark.parametrize(("world_size", "left"), [(4, 1), (1, 0)], ids=["several nodes", "one node"])
def test_verdict_of_a_stall_that_ranks_outlive(directory: Path, world_size: int, left: int) -> None:
    """It is kept while it holds, unless the tapes of one node show everything; after that it says nothing of ends."""
    one = FakeTape(directory, 0, world_size)
    verdicts = AgentsVerdicts()
    stall = OngoingStall(ruling(), is_ours=False, nonces=frozenset({one.reader.identity.nonce}))
    verdicts.update([stall], [one.reader])
    assert len(list(directory.glob("verdict-*.json"))) == left
    verdicts.update([], [one.reader])
    assert list(directory.glob("verdict-*.json")) == []


def test_watch(start: Callable[..., Running], directory: Path) -> None:
    """Over ranks that wait for another node's, `watch` shows the agents' verdict, and that it is over."""
    ranks = [FakeTape(directory, rank) for rank in HERE]
    for one in ranks:
        one.begin(at=time.monotonic_ns(), sequence=2)
    watch = start("watch", "--plain", "--threshold", "60")
    watch.wait_for(r"found ranks 2-3$")
    receive(directory)
    watch.wait_for(rf"STALL: {re.escape(SENTENCE)} \(reported by the agents of all nodes\)$")
    remove_agents_verdict(directory, RUN_ID)
    watch.wait_for(r"stall over, as the agents of all nodes report$")
    assert watch.out.count("STALL: ") == 1


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"{}", b'{"kind": 1}', b"[" * 5000, b"\xff", b'{"kind": "' + b"x" * 20_000 + b'"}'],
    ids=["empty", "list", "nothing", "number", "deep", "bytes", "long"],
)
def test_hostile_file(base: Path, job: Path, content: bytes) -> None:
    """A file that is not a verdict is ignored."""
    receive(job)
    [path] = job.glob("verdict-*.json")
    path.write_bytes(content)
    assert document(base)["verdict"] is None


def test_hostile_texts(base: Path, job: Path) -> None:
    """Control characters do not reach the terminal, out-of-range ranks do not fill memory; a pipe is not read."""
    receive(job)
    [path] = job.glob("verdict-*.json")
    found = json.loads(path.read_text())
    path.write_text(
        json.dumps({**found, "text": "\x1b[31mred", "ranks": "0-999999999,x,7", "channel": [99, "", 0, 0, 0]})
    )
    verdict = document(base)["verdict"]
    assert verdict["sentence"] == r"\x1b[31mred"
    assert len(verdict["ranks"]) < 1 << 17
    path.unlink()
    os.mkfifo(path)
    assert document(base)["verdict"] is None
