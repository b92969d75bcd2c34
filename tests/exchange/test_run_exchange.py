"""Agents of several nodes that meet over loopback: who judges, what it sees, and what the others hear."""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections.abc import Iterator

import pytest

from otel_torchdist.exchange import other, run_exchange, seats
from otel_torchdist.exchange.other import KNOCK_PATH, STATE_PATH
from otel_torchdist.exchange.picture import answer_of, views_of
from otel_torchdist.exchange.run_exchange import RunExchange
from otel_torchdist.exchange.wire import Question, WireError, decode_answer, encode
from otel_torchdist.stall.company import Awaits, Follows, Presides, Seating
from otel_torchdist.stall.events import Incident, Ruling, StacksOverdue, StacksWanted
from otel_torchdist.stall.world import Lane, Site, WorldSnapshot
from otel_torchdist.tape.layout import RecordKind
from otel_torchdist.tape.peers import Peers
from tests.exchange.company import TOKEN, Agents, agents
from tests.exchange.listening import HOST, stranger, until
from tests.stall.simulated_world import RUN, SECOND, START_NS, group_of

MINUTE = 60 * SECOND
EVERYBODY = group_of(0, 1, 2, 3)
SITE = Site(Lane(RecordKind.OPERATION, EVERYBODY.key), 2)


def ruling(epoch: int = 1, seat: int = 0) -> Ruling:
    """Something that is said of a stall."""
    return Ruling(Incident(RUN, "name", seat), epoch, SITE, f"said {epoch} times", {"epoch": epoch})


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trust ends, and peace is interrupted, several times as soon as in life."""
    for module in (run_exchange, seats):
        monkeypatch.setattr(module, "HURRIED_TRUST_S", 1.0)
    monkeypatch.setattr(seats, "KNOCK_TRUST_S", 0.7)
    monkeypatch.setattr(run_exchange, "KNOCK_AFTER_S", 0.3)
    monkeypatch.setattr(run_exchange, "PEACEFUL_ROUND_S", 0.5)
    monkeypatch.setattr(run_exchange, "HURRIED_ROUND_S", 0.05)
    monkeypatch.setattr(other, "LOST_ROUND_S", 0.2)


@pytest.fixture
def two() -> Iterator[Agents]:
    """Two nodes."""
    with agents(2) as made:
        yield made


@pytest.fixture
def three() -> Iterator[Agents]:
    """Three nodes."""
    with agents(3) as made:
        yield made


def world_of(agents: Agents, number: int) -> WorldSnapshot:
    """What the agent that judges sees."""
    seating = agents.nodes[number].meet()
    assert isinstance(seating, Presides)
    return seating.world


def exchange_of(agents: Agents, number: int) -> RunExchange:
    """A living agent's."""
    exchange = agents.nodes[number].exchange
    assert exchange is not None
    return exchange


# --- who judges ---------------------------------------------------------------------------------------------------


def test_lowest_seat_judges_and_sees_all(three: Agents) -> None:
    """Of three agents that see a stall coming the lowest soon sees all ranks, its own as they are; others follow."""
    three.begin()
    three.set_uneasy(True)
    began = time.monotonic()
    three.wait_until_judges(True, False, False)
    assert time.monotonic() - began < 5
    seating = three.nodes[0].meet()
    assert isinstance(seating, Presides)
    assert seating.seat == 0
    world, local = seating.world, three.nodes[0].local()
    assert sorted(world.ranks) == [0, 1, 2, 3, 4, 5]
    assert [view.is_afar for view in world.in_order] == [False, False, True, True, True, True]
    assert {rank: world.ranks[rank] for rank in (0, 1)} == local.ranks
    assert (world.run, world.taken_ns, dict(world.unreachable)) == (RUN, local.taken_ns, {})


@pytest.mark.usefixtures("quick")
def test_in_peace_too(two: Agents) -> None:
    """Nobody is uneasy: the higher seat still learns that it has not to judge, and nobody is in a hurry."""
    two.begin()
    two.wait_until_judges(True, False)
    assert two.nodes[1].meet() == Follows(None, False)


@pytest.mark.usefixtures("quick")
def test_each_picture_is_the_newest(two: Agents) -> None:
    """What a rank of another node does is seen soon after, again and again, while a stall is near."""
    two.begin()
    two.set_uneasy(True)
    two.wait_until_judges(True, False)
    for sequence in (1, 2):
        number = two.world.ranks[3].enter(EVERYBODY, 9.0)
        until(lambda: two.meet() and len(world_of(two, 0).ranks[3].open) == 1)
        two.world.ranks[3].end(number, 9.5)
        until(lambda: two.meet() and world_of(two, 0).ranks[3].open == ())
        lane = Lane(RecordKind.OPERATION, EVERYBODY.key)
        assert world_of(two, 0).ranks[3].progress[lane].completed == sequence


def test_alone(two: Agents) -> None:
    """An agent that knows of no other judges by itself and waits for nobody, however uneasy."""
    two.nodes[0].begin(())
    two.nodes[0].is_uneasy = True
    seating = two.nodes[0].meet()
    assert isinstance(seating, Presides)
    assert sorted(seating.world.ranks) == [0, 1]


def test_judgement_waits_for_answers(three: Agents, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first judgement of an uneasy agent rests on what all see: it is never made before they have answered."""
    monkeypatch.setattr(run_exchange, "HOLD_S", 10.0)
    three.begin()
    three.set_uneasy(True)
    node = three.nodes[0]
    until(lambda: three.meet() and isinstance(node.seatings[-1], Presides))
    assert isinstance(node.seatings[0], Awaits)
    last = node.seatings[-1]
    assert isinstance(last, Presides)
    assert sorted(last.world.ranks) == [0, 1, 2, 3, 4, 5]


def test_judgement_does_not_wait_for_ever() -> None:
    """Where the other agent says nothing the judgement is put off by little more than HOLD_S."""

    def silent(connection: object) -> None:
        gate.wait(30)

    gate = threading.Event()
    with agents(1) as made, stranger(silent) as port:
        peer = dataclasses.replace(made.nodes[0].peer, seat=7, port=port)
        made.nodes[0].begin((peer,))
        made.set_uneasy(True)
        began = time.monotonic()
        until(lambda: isinstance(made.nodes[0].meet(), Presides))
        assert time.monotonic() - began < run_exchange.HOLD_S + 1
        gate.set()


def test_next_one_takes_over(three: Agents, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the agent that judges dies the next seat does within seconds, and not without having asked the third."""
    monkeypatch.setattr(run_exchange, "HOLD_S", 10.0)
    three.begin()
    three.set_uneasy(True)
    three.wait_until_judges(True, False, False)
    three.nodes[0].end()
    for node in three.nodes:
        node.seatings.clear()
    began = time.monotonic()
    three.wait_until_judges(None, True, False)
    assert time.monotonic() - began < 6
    judged = [seating for seating in three.nodes[1].seatings if isinstance(seating, Presides)]
    assert all({2, 3, 4, 5} <= seating.world.ranks.keys() for seating in judged)
    assert all(seating.seat == 2 for seating in judged)
    judged = [seating for seating in three.nodes[2].seatings if isinstance(seating, Presides)]
    assert all({2, 3, 4, 5} <= seating.world.ranks.keys() for seating in judged)


@pytest.mark.usefixtures("quick")
def test_low_one_that_is_back_judges_again(two: Agents) -> None:
    """An agent that dies and is started again, under another life on the same port, judges as before."""
    two.begin()
    two.set_uneasy(True)
    two.wait_until_judges(True, False)
    for _ in range(2):
        two.nodes[0].end()
        two.wait_until_judges(None, True)
        two.nodes[0].listen()
        two.begin(0)
        two.wait_until_judges(True, False)


@pytest.mark.usefixtures("quick")
def test_high_one_that_is_first(two: Agents) -> None:
    """Whoever is alone judges; the lower seat takes it over once it is there, told by the question that it gets."""
    two.begin(1)
    two.set_uneasy(True, 1)
    two.wait_until_judges(None, True)
    two.begin(0)
    two.wait_until_judges(True, False)


@pytest.mark.usefixtures("quick")
def test_agent_that_is_announced_later(two: Agents) -> None:
    """Agents that do not know of each other judge each for itself, until they are told; what is known stays."""
    for node in two.nodes:
        node.begin(())
    two.set_uneasy(True)
    assert two.judges() == [True, True]
    for number in (0, 1):
        peers = Peers(RUN, TOKEN, two.nodes[number].seat, HOST, two.others_of(number))
        for _ in range(2):
            exchange_of(two, number).renew(peers)
    two.wait_until_judges(True, False)
    exchange_of(two, 0).renew(Peers(RUN, TOKEN, 0, HOST, ()))
    two.wait_until_judges(True, False)


@pytest.mark.usefixtures("quick")
def test_asked_by_one_that_has_not_been_announced(two: Agents, caplog: pytest.LogCaptureFixture) -> None:
    """An agent follows one of which it does not know where it is; it knocks there as soon as it does."""
    two.nodes[1].begin(())
    exchange = exchange_of(two, 1)
    two.nodes[1].meet()
    exchange.respond(STATE_PATH, encode(Question(0)))
    two.set_uneasy(True)
    then = time.monotonic() + 3 * run_exchange.KNOCK_AFTER_S
    while time.monotonic() < then:
        assert isinstance(two.nodes[1].meet(), Follows)
        time.sleep(0.02)
    two.begin(0)
    exchange.renew(Peers(RUN, TOKEN, two.nodes[1].seat, HOST, two.others_of(1)))
    two.wait_until_judges(True, False)
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


# --- haste --------------------------------------------------------------------------------------------------------


def test_stall_near_at_a_follower_hurries_the_judge(two: Agents, monkeypatch: pytest.MonkeyPatch) -> None:
    """The judge sees nothing and asks at long intervals; a follower that does knocks, and is asked within a second."""
    for module in (run_exchange, seats):
        monkeypatch.setattr(module, "HURRIED_TRUST_S", 0.5)
    two.begin()
    two.set_uneasy(True)
    two.wait_until_judges(True, False)
    two.set_uneasy(False)
    until(lambda: two.meet()[1] == Follows(None, False))
    number = two.world.ranks[2].enter(EVERYBODY, 9.0)
    assert world_of(two, 0).ranks[2].open == ()
    two.set_uneasy(True, 1)
    began = time.monotonic()
    until(lambda: two.meet()[1] == Follows(None, True))
    until(lambda: two.meet() and world_of(two, 0).ranks[2].open != ())
    assert time.monotonic() - began < run_exchange.KNOCK_AFTER_S + 1
    two.world.ranks[2].end(number, 9.5)
    until(lambda: two.meet() and world_of(two, 0).ranks[2].open == ())  # it goes on asking
    two.set_uneasy(False, 1)
    until(lambda: two.meet()[1] == Follows(None, False))


def test_peace_after_haste(two: Agents, monkeypatch: pytest.MonkeyPatch) -> None:
    """When nobody is uneasy any more the judge says so before those who were asked in a hurry cease to trust it."""
    for module in (run_exchange, seats):
        monkeypatch.setattr(module, "HURRIED_TRUST_S", 1.0)
    two.begin()
    two.set_uneasy(True)
    two.wait_until_judges(True, False)
    two.set_uneasy(False)
    then = time.monotonic() + 1.5
    while time.monotonic() < then:
        assert two.judges() == [True, False]
        time.sleep(0.02)
    assert two.nodes[1].seatings[-1] == Follows(None, False)


def test_knock_at_one_that_is_dead(two: Agents) -> None:
    """A follower that is not asked, and finds nobody where it knocks, does not wait until its trust has ended."""
    two.begin()
    two.set_uneasy(True)
    two.wait_until_judges(True, False)
    two.set_uneasy(False)
    exchange_of(two, 1).respond(STATE_PATH, encode(Question(0)))  # in peace, so it is trusted for long
    two.nodes[0].end()
    two.set_uneasy(True)
    began = time.monotonic()
    two.wait_until_judges(None, True)
    assert time.monotonic() - began < seats.PEACEFUL_TRUST_S / 2


# --- what is passed on --------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("quick")
def test_ruling_reaches_all(three: Agents) -> None:
    """What is said of a stall, each newer word, and that it is over reach both followers."""
    three.begin()
    three.set_uneasy(True)
    three.wait_until_judges(True, False, False)
    for said in (ruling(1), ruling(2), None):
        exchange_of(three, 0).tell(said)
        until(lambda said=said: three.meet()[1:] == [Follows(said, True)] * 2)


@pytest.mark.usefixtures("quick")
def test_ruling_of_before_is_not_said_again(three: Agents) -> None:
    """An agent that has followed in between says nothing of the stall that was its to judge before."""
    three.begin(1, 2)
    three.set_uneasy(True)
    three.wait_until_judges(None, True, False)
    exchange_of(three, 1).tell(ruling(1, seat=2))
    until(lambda: three.meet()[2] == Follows(ruling(1, seat=2), True))
    exchange_of(three, 1).respond(STATE_PATH, encode(Question(0, is_hurried=True)))
    exchange_of(three, 2).respond(STATE_PATH, encode(Question(0, is_hurried=True)))
    assert three.judges() == [None, False, False]
    three.nodes[2].seatings.clear()
    three.wait_until_judges(None, True, False)
    heard = [seating.ruling for seating in three.nodes[2].seatings if isinstance(seating, Follows)]
    assert heard
    assert set(heard) == {None}


@pytest.mark.usefixtures("quick")
def test_wishes_for_stacks_arrive_once(three: Agents) -> None:
    """Each agent hears which of its own ranks should say where they are, by which way, and only once."""
    three.begin()
    three.set_uneasy(True)
    three.wait_until_judges(True, False, False)
    exchange_of(three, 0).ask(StacksWanted(frozenset({0x1000, 0x1002, 0x1003, 0x1004, 0x9999})))
    exchange_of(three, 0).ask(StacksOverdue(frozenset({0x1002})))
    heard: dict[int, list[StacksWanted | StacksOverdue]] = {1: [], 2: []}

    def collect() -> dict[int, list[StacksWanted | StacksOverdue]]:
        three.meet()
        for number, wishes in heard.items():
            wishes += exchange_of(three, number).asked()
        return heard

    expected = {
        1: [StacksWanted(frozenset({0x1002, 0x1003})), StacksOverdue(frozenset({0x1002}))],
        2: [StacksWanted(frozenset({0x1004}))],
    }
    until(lambda: collect() == expected)
    then = time.monotonic() + 8 * run_exchange.HURRIED_ROUND_S
    while time.monotonic() < then:
        assert collect() == expected
        time.sleep(0.02)
    assert exchange_of(three, 0).asked() == []


# --- who is out of reach ------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("quick")
def test_agent_out_of_reach(two: Agents, caplog: pytest.LogCaptureFixture) -> None:
    """Its living ranks are named with its node, a dead one stays known; one warning, and all is well afterwards."""
    caplog.set_level(logging.INFO, "otel_torchdist")
    two.world.ranks[3].die(9.0)
    two.begin()
    two.set_uneasy(True)
    two.wait_until_judges(True, False)
    assert world_of(two, 0).ranks[3].is_dead
    two.nodes[1].end()
    until(lambda: world_of(two, 0).unreachable)
    world = world_of(two, 0)
    assert dict(world.unreachable) == {2: "node-2"}
    assert sorted(world.ranks) == [0, 1, 3]
    assert world.ranks[3].is_dead
    two.nodes[1].listen()
    two.begin(1)
    until(lambda: two.meet() and not world_of(two, 0).unreachable)
    two.wait_until_judges(True, False)
    messages = [record.getMessage() for record in caplog.records]
    assert len([text for text in messages if "node-2" in text and "does not answer" in text]) == 1
    assert "the agent on node-2 answers again" in messages


@pytest.mark.usefixtures("quick")
def test_one_unanswered_question_is_no_loss(two: Agents) -> None:
    """An agent that misses a single question is not out of reach: its ranks stay as they were."""
    two.begin()
    two.set_uneasy(True)
    two.wait_until_judges(True, False)
    (them,) = exchange_of(two, 0)._others.values()
    them._failed(RuntimeError("a hiccup"))
    assert not them.is_lost
    assert sorted(world_of(two, 0).ranks) == [0, 1, 2, 3]


@pytest.mark.usefixtures("quick")
def test_impostor(two: Agents, caplog: pytest.LogCaptureFixture) -> None:
    """What answers at an agent's place without the token is out of reach, and none of its words is believed."""
    node = two.nodes[1]
    node.exchange = RunExchange(Peers(RUN, b"x" * 32, node.seat, HOST, two.others_of(1)), node._life)
    node._app.add(RUN, node.exchange)
    two.begin(0)
    two.set_uneasy(True)
    until(lambda: two.meet() and "does not know the run's token" in caplog.text)
    assert sorted(world_of(two, 0).ranks) == [0, 1]


def test_rank_that_has_moved(two: Agents) -> None:
    """Where two agents have a tape of the same rank, the one that is alive is seen."""
    two.world.ranks[1].die(9.0)
    two.begin()
    two.set_uneasy(True)
    two.nodes[1].ranks = (1, 2, 3)
    two.wait_until_judges(True, False)
    two.world.ranks[1].alive = True
    until(lambda: exchange_of(two, 1).meet(two.nodes[1].local(), True) and world_of(two, 0).ranks[1].alive)


# --- clocks -------------------------------------------------------------------------------------------------------


class _Elsewhere(RunExchange):
    """An agent whose monotonic clock shows another time, as that of another machine does."""

    skew_ns = 0

    def meet(self, world: WorldSnapshot, is_uneasy: bool) -> Seating:
        """Meet with a picture on that clock."""
        views = views_of(answer_of(world, 0, False, 0), RUN, self.skew_ns, 0)
        ranks = {view.rank: dataclasses.replace(view, is_afar=False) for view in views}
        return super().meet(WorldSnapshot(RUN, world.taken_ns + self.skew_ns, ranks), is_uneasy)

    def respond(self, path: str, body: bytes) -> bytes | None:
        """Say that clock's time."""
        answer = super().respond(path, body)
        if answer is None:
            return None
        said = decode_answer(answer)
        return encode(dataclasses.replace(said, now_ns=said.now_ns + self.skew_ns))


@pytest.mark.parametrize("skew_ns", [10 * MINUTE, -10 * MINUTE, 0])
def test_clocks_that_differ(two: Agents, skew_ns: int) -> None:
    """A wait on a node whose clock is minutes off is as old as it is, to some milliseconds."""
    kind = type("Elsewhere", (_Elsewhere,), {"skew_ns": skew_ns})
    since_s = (time.monotonic_ns() - START_NS) / 1e9 - 30
    two.world.ranks[2].enter(EVERYBODY, since_s)
    two.begin(0)
    two.nodes[1].begin(two.others_of(1), kind)
    two.set_uneasy(True)
    two.wait_until_judges(True, False)
    (there,) = world_of(two, 0).ranks[2].open
    (here,) = two.nodes[1].local().ranks[2].open
    assert there.waiting_since_ns is not None and here.waiting_since_ns is not None
    assert abs(there.waiting_since_ns - here.waiting_since_ns) < 50_000_000
    assert abs(there.record.entered_ns - here.record.entered_ns) < 50_000_000


# --- questions by hand, and the end -------------------------------------------------------------------------------


def test_what_is_no_question(two: Agents) -> None:
    """There are two paths; who has our own seat, or says no question, is not listened to."""
    two.nodes[0].begin(())
    exchange = exchange_of(two, 0)
    assert exchange.respond("/", b"") is None
    assert exchange.respond("/v1/state/", encode(Question(2))) is None
    with pytest.raises(WireError, match="our seat"):
        exchange.respond(STATE_PATH, encode(Question(0)))
    with pytest.raises(WireError):
        exchange.respond(STATE_PATH, b"")
    for path, body in ((STATE_PATH, encode(Question(2))), (KNOCK_PATH, b"")):
        answer = exchange.respond(path, body)
        assert answer is not None
        assert decode_answer(answer).ranks == ()  # it has seen none yet


def test_stop_leaves_no_threads() -> None:
    """Also in the middle of a question to somebody who never answers, an agent ends soon, and its threads with it."""

    def ours() -> set[threading.Thread]:
        return {thread for thread in threading.enumerate() if thread.name.startswith("torchdist-exchange")}

    gate, asked = threading.Event(), threading.Event()

    def silent(connection: object) -> None:
        asked.set()
        gate.wait(30)

    before = ours()
    with agents(1) as made, stranger(silent) as port:
        peer = dataclasses.replace(made.nodes[0].peer, seat=7, port=port)
        made.nodes[0].begin((peer,))
        made.set_uneasy(True)
        made.meet()
        assert asked.wait(10)
        began = time.monotonic()
        made.nodes[0].end()
        assert time.monotonic() - began < run_exchange.PEACEFUL_TIMEOUT_S + 2
        gate.set()
        until(lambda: ours() <= before)
