"""The document of the live page: what it says of ranks, groups, stalls and the last minute, and to whom."""

from __future__ import annotations

import dataclasses
import signal

import pytest

from otel_torchdist.judge.stall.events import JudgingAgent
from otel_torchdist.model.kinds import TapeState
from otel_torchdist.model.names import CallSiteName
from otel_torchdist.model.rank_state.lives import Death
from otel_torchdist.model.snapshot import RankView, WorldSnapshot
from otel_torchdist.show.live.document import LiveAnswer, RunPart, chosen_lanes, document_of
from otel_torchdist.show.live.live_snapshot import Bar, LiveSnapshot
from otel_torchdist.show.live.ranks import MAX_RANKS
from otel_torchdist.telemetry.metrics.snapshots import ArrivalCounts, RunFindings, ShownVerdict
from tests.support.worlds.fake_world import SECOND
from tests.support.worlds.live_pages import FACTS, seen_in, snapshot_of, stalled_world, with_stack

OURS, THEIRS = 1000, 1001


def changed(world: WorldSnapshot, rank: int, **changes: object) -> WorldSnapshot:
    """The same world with another view of one rank."""
    view = dataclasses.replace(world.ranks[rank], **changes)  # type: ignore[arg-type]
    return dataclasses.replace(world, ranks={**world.ranks, rank: view})


def shown(snapshot: LiveSnapshot) -> RunPart:
    """Return the part of a document about the only run of a snapshot."""
    found = document_of(snapshot, FACTS, None).run
    assert found is not None
    return found


def run_of(world: WorldSnapshot, lanes: tuple[int, ...] = (), trace_url: str = "") -> RunPart:
    """What a document shows of the only run."""
    facts = dataclasses.replace(FACTS, trace_url=trace_url)
    found = document_of(snapshot_of(seen_in(world)), facts, None, lanes=lanes).run
    assert found is not None
    return found


def test_a_late_rank_is_absent_and_the_others_are_stalled() -> None:
    """The banner has the sentence with its present age, each rank what it waits or is missing in, for how long."""
    run = run_of(stalled_world(4, missing=(2,), age_s=14))
    assert run.stall is not None
    assert run.stall.text.startswith("rank 2 has not entered all_reduce (sequence 21, default_pg) for 17.0 s")
    assert (run.stall.kind, run.stall.ranks, run.stall.operation) == ("absent", "2", "all_reduce #21")
    assert run.stall.age_s == pytest.approx(17.0)
    assert [(row.state, row.named, row.operation, row.age_s) for row in run.ranks] == [
        ("stalled", False, "all_reduce #21", pytest.approx(17.0)),
        ("stalled", False, "all_reduce #21", pytest.approx(17.0)),
        ("absent", True, "not in all_reduce #21", pytest.approx(17.0)),
        ("stalled", False, "all_reduce #21", pytest.approx(17.0)),
    ]
    assert [(crowd.ranks, crowd.count, crowd.state) for crowd in run.crowds] == [
        ("2", 1, "absent"),
        ("0-1,3", 3, "stalled"),
    ]


def died(world: WorldSnapshot, rank: int, number: signal.Signals | None = None, since_ns: int = 0) -> WorldSnapshot:
    """The same world where a rank is gone, which an agent has seen to end by a signal, if one is given."""
    died_ns = world.taken_ns - since_ns
    death = None if number is None else Death(died_ns, status=int(number))
    return changed(world, rank, alive=False, gone_since_ns=died_ns, death=death)


def finished(world: WorldSnapshot, *ranks: int) -> WorldSnapshot:
    """The same world where ranks have finished."""
    for rank in ranks:
        world = changed(world, rank, alive=False, state=TapeState.FINISHED, open=())
    return world


AT_17_S = stalled_world(4, (2,), 17)
AT_2_S = stalled_world(4, (1,), 2)


@pytest.mark.parametrize(
    ("world", "states", "run"),
    [
        pytest.param(stalled_world(4, (2,), -2.5), "running running running running", "running", id="below a second"),
        pytest.param(stalled_world(4, (2,), 3), "waiting waiting running waiting", "running", id="below the threshold"),
        pytest.param(died(AT_2_S, 1), "waiting dead waiting waiting", "stalled", id="dead"),
        pytest.param(finished(died(AT_2_S, 1), 0, 2, 3), "finished dead finished finished", "ended", id="ended"),
        pytest.param(
            died(died(AT_17_S, 2, signal.SIGKILL, since_ns=2), 1, signal.SIGTERM, since_ns=1),
            "stalled followed dead stalled",
            "stalled",
            id="one has only followed the rank that the stall is blamed on",
        ),
    ],
)
def test_states(world: WorldSnapshot, states: str, run: str) -> None:
    """By its age a wait is nothing, a wait or a stall; a rank that is gone is dead, and a finished rank is not."""
    found = run_of(world)
    assert ([row.state for row in found.ranks], found.item.state) == (states.split(), run)
    assert [row.heartbeat_s is not None for row in found.ranks] == [one.alive for one in world.in_order]


def test_the_verdict_stays_once_the_job_has_ended_in_the_stall() -> None:
    """The page is often opened after the end: the verdict and its rank are still there, and an ended wait is not."""
    world = stalled_world(4, (2,), 14)
    killed = world
    for rank in world.ranks:
        killed = changed(died(killed, rank, signal.SIGTERM), rank, open=())
    for after, ranks in ((killed, "2"), (finished(world, *world.ranks), None)):
        run = document_of(snapshot_of(seen_in(world, after)), FACTS, None).run
        assert run is not None
        assert run.item.state == "ended"
        assert (run.stall and run.stall.ranks) == ranks
        assert [row.rank for row in run.ranks if row.named] == ([] if ranks is None else [2])


def test_stack_and_trace_of_a_stall() -> None:
    """The stack of the rank that is waited for is there, and its trace is a link only if an address is configured."""
    world = with_stack(stalled_world(4, (2,), 14), 2, CallSiteName("load", "/home/ada/data.py", 7))
    run = run_of(world, trace_url="http://jaeger:16686/trace/{trace_id}")
    assert run.stall is not None
    [stack] = run.stall.stacks
    assert (stack.rank, stack.line, stack.source) == (2, "data.py:7 load", "stack")
    assert stack.stack == '  File "/home/ada/data.py", line 7, in load'
    assert run.stall.trace_url == f"http://jaeger:16686/trace/{run.stall.trace_id}"
    assert [row.line for row in run.ranks] == [
        "train.py:42 train",
        "train.py:42 train",
        "data.py:7 load",
        "train.py:42 train",
    ]
    without = run_of(world).stall
    assert without is not None
    assert (without.trace_url, len(without.trace_id)) == ("", 32)


def test_the_page_on_a_verdict() -> None:
    """The verdict links to the page on its kind: the agent's own, or one below a configured address."""
    for docs_url, page in (
        ("docs", "docs/verdicts/absent"),
        ("https://docs.example", "https://docs.example/verdicts/absent"),
    ):
        facts = dataclasses.replace(FACTS, docs_url=docs_url)
        run = document_of(snapshot_of(seen_in(stalled_world(4, (2,), 14))), facts, None).run
        assert run is not None and run.stall is not None
        assert run.stall.docs_url == page


def test_many_stacks_are_counted_instead() -> None:
    """Of a hundred ranks that are missing, four have their place shown, and the rest is a number."""
    run = run_of(stalled_world(200, tuple(range(100)), 14))
    assert run.stall is not None
    assert [one.rank for one in run.stall.stacks] == [0, 1, 2, 3]
    assert run.stall.left_out == 96
    assert run.stall.ranks == "0-99"


def test_groups_and_who_is_behind() -> None:
    """A group's progress names the members that are behind; all at the same call are not."""
    [group] = run_of(stalled_world(4, (2,), 14)).groups
    assert (group.name, group.members, group.first, group.last, group.behind) == ("default_pg", "0-3", 20, 21, "2")
    assert group.stalled
    [even] = run_of(stalled_world(4, (), 1)).groups
    assert (even.first, even.last, even.behind, even.stalled) == (21, 21, "", False)


def test_hostile_names_are_printable_and_short() -> None:
    """Control characters, reversed text and lone surrogates are escaped, and no name is longer than a line."""
    name = "\x1b[31m\u202eevil\ud800<script>" + "x" * 5000
    run = run_of(changed(stalled_world(4, (2,), 14, group_name=name), 2, host="\x00\u2066host"))
    texts = [run.groups[0].name, *run.hosts, *(row.group for row in run.ranks), *(row.host for row in run.ranks)]
    assert all(text.isprintable() and len(text) <= 1000 for text in texts)
    assert run.groups[0].name.startswith("\\x1b[31m\\u202eevil\\ud800<script>xxx")
    assert run.stall is not None
    assert run.stall.text.isprintable()


def test_lanes_of_few_and_strips_of_many() -> None:
    """Up to 16 ranks have their operations shown; of more there are the blamed ones first, and strips of all."""
    few = run_of(stalled_world(4, (2,), 14)).timeline
    assert ([lane.rank for lane in few.lanes], len(few.strips)) == ([0, 1, 2, 3], 4)
    assert few.names == (("all_reduce", "default_pg", "all_reduce"),)
    assert [len(lane.bars) for lane in few.lanes] == [21, 21, 20, 21]
    assert few.lanes[0].bars[:2] == ((0, 40_000, 0), (100_000, 40_000, 0))
    assert few.lanes[0].bars[-1] == (100_000, -1, 0)
    assert few.lanes[0].since - sum(bar[0] for bar in few.lanes[0].bars) == 1_700_000
    many = run_of(stalled_world(64, (40,), 14)).timeline
    assert [lane.rank for lane in many.lanes] == [*range(15), 40]
    assert len(many.strips) == 64
    chosen = run_of(stalled_world(64, (40,), 14), lanes=(7, 9, 99)).timeline
    assert [lane.rank for lane in chosen.lanes] == [7, 9]


def test_ends_before_begins() -> None:
    """An operation whose end a clock has put before its begin has no length; it is not drawn as one that is open."""
    seen = seen_in(stalled_world(2, (1,), 14))
    snapshot = snapshot_of(seen)
    nonce, at_ns = seen.world.ranks[1].nonce, snapshot.taken_ns
    bars = {**snapshot.bars, nonce: (Bar("all_reduce", "", at_ns - SECOND, at_ns - SECOND - 20_000),)}
    found = shown(dataclasses.replace(snapshot, bars=bars))
    assert [length for _, length, _ in found.timeline.lanes[1].bars] == [0]


def test_strips_tell_communication_from_computation() -> None:
    """Where there are counters they count; before them operations do; before these nothing is known."""
    run = run_of(stalled_world(64, (40,), 14))
    cells = run.timeline.strips[0].cells
    assert len(cells) == 60
    # The ranks began 37 s ago, and counters of a quarter begin 20 s ago. Operations took 0.4 s of each second before.
    assert set(cells[:22]) == {"."}
    assert set(cells[24:39]) == {"4"}
    assert set(cells[41:]) == {"2"}


def test_measured_shares() -> None:
    """The counters of the last seconds become shares and rates; without them nothing is claimed."""
    run = run_of(stalled_world(4, (2,), 14))
    assert {(row.communicating, row.blocked, row.steps_per_s) for row in run.ranks} == {(0.25, 0.0, 0.0)}
    seen = seen_in(stalled_world(4, (2,), 14))
    bare = dataclasses.replace(snapshot_of(seen), samples={}, bars={})
    found = shown(bare)
    assert {(row.communicating, row.steps_per_s) for row in found.ranks} == {(None, None)}
    assert [len(lane.bars) for lane in found.timeline.lanes] == [1, 1, 0, 1]


def test_visitors_see_their_own_runs() -> None:
    """A user's runs are shown to that user and to root; to others they are a number only."""
    stalled, calm = seen_in(stalled_world(2, (1,), 14)), seen_in(stalled_world(4, (), 1))
    snapshot = snapshot_of(calm, stalled, owners=(OURS, THEIRS))

    def keys(document: LiveAnswer) -> list[str]:
        return [item.key for item in document.runs]

    ours = document_of(snapshot, FACTS, OURS)
    assert (keys(ours), ours.hidden) == (["key0"], 1)
    assert ours.run is not None
    assert ours.run.item.state == "running"
    assert keys(document_of(snapshot, FACTS, None)) == ["key1", "key0"], "what is stalled comes first"
    assert keys(document_of(snapshot, FACTS, 0)) == ["key1", "key0"]
    stranger = document_of(snapshot, FACTS, 4711, key="key1")
    assert (stranger.runs, stranger.run, stranger.hidden) == ((), None, 2)
    guessed = document_of(snapshot, FACTS, OURS, key="key1")
    assert guessed.run is not None
    assert guessed.run.item.key == "key0", "a key of another user's run shows nothing of it"


@pytest.mark.parametrize(
    ("page", "link"),
    [
        ("http://node-1:9464/", "http://node-1:9464/"),
        ("http://[fd00::1]:9464/", "http://[fd00::1]:9464/"),
        ("javascript:alert(1)", ""),
        ("http://evil/<script>", ""),
        ("https://user@evil/", ""),
    ],
)
def test_page_of_another_agent(page: str, link: str) -> None:
    """Only a plain address becomes a link: another agent may send anything."""
    seen = dataclasses.replace(seen_in(stalled_world(4, (), 1)), judge=JudgingAgent("node-1", page))
    found = shown(snapshot_of(seen))
    assert found.judge is not None
    assert (found.judge.node, found.judge.page) == ("node-1", link)


def test_ruling_of_another_agent() -> None:
    """An agent that only follows shows the ruling as it was sent, and the age of the waits that it sees itself."""
    seen = dataclasses.replace(seen_in(stalled_world(4, (2,), 14)), verdict=None, judge=JudgingAgent("node-1", ""))
    found = shown(snapshot_of(seen))
    assert found.stall is not None
    assert seen.ruling is not None
    assert found.stall.text == seen.ruling.text
    assert (found.stall.kind, found.stall.ranks, found.stall.group) == ("absent", "2", "default_pg")
    assert found.stall.age_s == pytest.approx(17.0)
    assert [row.state for row in found.ranks] == ["stalled", "stalled", "absent", "stalled"]


def test_unreachable_ranks_are_listed() -> None:
    """A rank whose agent does not answer has a row with its node, and nothing else is claimed of it."""
    seen = seen_in(stalled_world(4, (), 1))
    world = dataclasses.replace(seen.world, unreachable={4: "node-9"})
    found = shown(snapshot_of(dataclasses.replace(seen, world=world)))
    assert (found.ranks[4].host, found.ranks[4].state, found.ranks[4].heartbeat_s) == ("node-9", "unreachable", None)


def test_unreachable_ranks_of_another_version() -> None:
    """Their row says of which version their agent is."""
    seen = seen_in(stalled_world(4, (), 1))
    world = dataclasses.replace(seen.world, unreachable={4: "node-9"}, other_versions={"node-9": "9.1.0"})
    row = shown(snapshot_of(dataclasses.replace(seen, world=world))).ranks[4]
    assert (row.state, row.operation) == ("unreachable", "its agent is of otel-torchdist 9.1.0, another version")


def test_findings_and_who_came_last() -> None:
    """Stragglers are named with their group, and the ranks for which others waited longest come first."""
    snapshot = snapshot_of(seen_in(stalled_world(4, (), 1)))
    [run] = snapshot.runs
    key = next(iter(next(iter(run.seen.world.ranks.values())).groups))
    counts = ArrivalCounts(100, 3.0)
    counts.last.update({3: 90, 1: 10})
    counts.late_s.update({1: 0.1, 3: 2.5})
    finding = ShownVerdict(key, "all_reduce", "straggler", "3", "ab" * 16)
    findings = RunFindings((finding,), {key: counts})
    found = shown(dataclasses.replace(snapshot, runs=(dataclasses.replace(run, findings=findings),)))
    [late] = found.lateness
    assert (late.group, late.calls) == ("default_pg", 100)
    assert [(one.rank, one.calls, one.late_s) for one in late.late] == [(3, 90, 2.5), (1, 10, 0.1)]
    assert [(one.kind, one.ranks, one.group) for one in found.findings] == [("straggler", "3", "default_pg")]


@pytest.mark.parametrize(
    ("text", "ranks"), [("0-3,9", (0, 1, 2, 3, 9)), ("", ()), ("x,-1,2", (2,)), ("0-99999", tuple(range(16)))]
)
def test_chosen_ranks(text: str, ranks: tuple[int, ...]) -> None:
    """A list of ranks is read as far as it makes sense, and 16 at most."""
    assert chosen_lanes(text) == ranks


@pytest.mark.thorough
def test_more_ranks_than_are_listed() -> None:
    """Beyond 4,096 ranks rows are cut; the crowds and the banner still cover all of them."""
    seen = seen_in(stalled_world(MAX_RANKS + 10, (MAX_RANKS + 5,), 14))
    found = shown(snapshot_of(seen))
    assert len(found.ranks) == MAX_RANKS
    assert sum(crowd.count for crowd in found.crowds) == MAX_RANKS + 10
    assert found.stall is not None
    assert found.stall.ranks == str(MAX_RANKS + 5)


def test_rank_views_are_left_alone() -> None:
    """Making a document changes nothing in the snapshot, which other threads may read at the same time."""
    snapshot = snapshot_of(seen_in(stalled_world(8, (2,), 14)))
    first = document_of(snapshot, FACTS, None)
    assert document_of(snapshot, FACTS, None) == first
    assert all(isinstance(view, RankView) for view in snapshot.runs[0].seen.world.ranks.values())
    assert first.at == snapshot.wall_ns / SECOND


def test_forged_sizes_are_bounded() -> None:
    """A tape may claim any world size, and a rank have any number of operations open: neither makes a long document."""
    seen = seen_in(stalled_world(2, (1,), 14))
    view = seen.world.ranks[0]
    open_ = tuple(view.open[0] for _ in range(10_000))
    world = dataclasses.replace(seen.world, ranks={**seen.world.ranks, 0: dataclasses.replace(view, open=open_)})
    snapshot = snapshot_of(dataclasses.replace(seen, world=world))
    runs = tuple(dataclasses.replace(run, world_size=1 << 40) for run in snapshot.runs)
    found = shown(dataclasses.replace(snapshot, runs=runs))
    assert len(found.missing) <= 300
    assert len(found.timeline.lanes[0].bars) <= 20 + 64
