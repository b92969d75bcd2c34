"""Agents of versions with different protocols: they tell each other apart from silence, and from strangers."""

from __future__ import annotations

import dataclasses
import json
import logging

import msgspec
import pytest

from otel_torchdist.agent.exchange.client import NoAnswerError, OtherProtocolError
from otel_torchdist.agent.exchange.codec import answer_of
from otel_torchdist.agent.exchange.peer import STATE_PATH
from otel_torchdist.agent.exchange.versions import ProtocolRefusal, protocol_of, refusal_from, refuse_protocol
from otel_torchdist.agent.exchange.wire import decode_answer, encode
from otel_torchdist.formats import EXCHANGE
from otel_torchdist.model.ids import run_label
from otel_torchdist.model.text import MemberRank
from otel_torchdist.node.job.peers import peer_from_json
from otel_torchdist.package import package_version
from tests.agent.exchange.echo_agent import OTHER_TOKEN, PATH, Agent
from tests.agent.exchange.messages.test_codec import eventful_world, snapshot
from tests.agent.exchange.peer_agents import Agents, world_of
from tests.support.waiting import until
from tests.support.worlds.fake_world import RUN

LATER = f"/v{EXCHANGE.number + 1}/state"


def test_question_in_another_protocol(agent: Agent) -> None:
    """It is refused with version, protocol and ranks, and not passed on; a stranger learns nothing."""
    with pytest.raises(OtherProtocolError) as refused:
        agent.client().ask(LATER, b"where?", 10)
    assert refused.value.refusal == ProtocolRefusal(EXCHANGE.number, package_version(), (4, 5))
    assert agent.echo.received == []
    with pytest.raises(NoAnswerError, match="does not have the run's token"):
        agent.client(OTHER_TOKEN).ask(LATER, b"where?", 10)
    assert agent.client().ask(PATH, b"where?", 10).body.endswith(b"where?")


@pytest.mark.parametrize(
    "body",
    [b"", b"no json", b"[" * 100_000, b"{}", b'{"protocol": "2"}', b'{"protocol": 2, "ranks": [-1]}'],
    ids=["empty", "no json", "deep", "no protocol", "text", "no rank"],
)
def test_damaged_refusals(body: bytes) -> None:
    """Other bytes are no refusal."""
    assert refusal_from(body) is None


def test_refusal_of_a_later_version() -> None:
    """Later versions may add keys; what they call themselves can be displayed."""
    later = json.loads(refuse_protocol((3,))) | {"protocol": 7, "version": "9\x1b[1m", "more": {}}
    refusal = refusal_from(json.dumps(later).encode())
    assert refusal is not None
    assert (refusal.protocol, refusal.ranks) == (7, (3,))
    assert refusal.version.isprintable()


def test_protocols_of_paths() -> None:
    """The number is in the path of a question."""
    assert [protocol_of(path) for path in (STATE_PATH, LATER, "/state", "/vx/state")] == [
        EXCHANGE.number, EXCHANGE.number + 1, None, None,
    ]  # fmt: skip


def test_agents_with_different_protocols(
    two: Agents, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each judges, and knows which ranks the other has and why they are missing; once upgraded they go on together."""
    caplog.set_level(logging.INFO, "otel_torchdist")
    with monkeypatch.context() as patched:
        patched.setattr("otel_torchdist.agent.exchange.peer.STATE_PATH", LATER)
        two.begin()
        two.set_suspicion(True)
        until(lambda: two.judges() == [True, True] and world_of(two, 0).unreachable and world_of(two, 1).unreachable)
        first, second = world_of(two, 0), world_of(two, 1)
        assert dict(first.unreachable) == {2: "node-2", 3: "node-2"}
        assert dict(first.other_versions) == {"node-2": package_version()}
        assert dict(second.unreachable) == {0: "node-0", 1: "node-0"}
        messages = [record.getMessage() for record in caplog.records]
        for node in ("node-0", "node-2"):
            [line] = [text for text in messages if f"agent on {node} " in text]
            assert f"(exchange protocol {EXCHANGE.number})" in line
            assert line.endswith(f"until the agents of run {run_label(RUN)} are upgraded to one version")
        assert "does not answer" not in caplog.text
    two.wait_until_judges(True, False)
    assert not world_of(two, 0).unreachable
    assert not world_of(two, 0).other_versions


def test_refusal_beside_another_world(two: Agents) -> None:
    """A process of another world is no rank of the run, and does not keep the agent from refusing."""
    two.begin()
    [first, _] = two.nodes
    local, engine = first.local(), MemberRank(4, "1 of transfer")
    assert first.exchange is not None
    first.exchange.meet(dataclasses.replace(local, ranks={**local.ranks, engine: local.ranks[0]}), False)
    refusal = refusal_from(first.exchange.refuse())
    assert refusal is not None
    assert refusal.ranks == (0, 1)


def test_message_of_a_later_version_with_the_same_protocol() -> None:
    """Unknown keys are ignored, also in the addresses in the store, and missing keys have defaults."""
    answer = dataclasses.replace(answer_of(snapshot(eventful_world()), 1, True, 5), version="9.1.0")
    plain = msgspec.msgpack.decode(encode(answer))
    assert decode_answer(msgspec.msgpack.encode(plain | {"later": [1, 2]})) == answer
    del plain["version"], plain["age_ns"]
    assert decode_answer(msgspec.msgpack.encode(plain)) == dataclasses.replace(answer, version="")
    assert peer_from_json('[1, "node7", "10.0.0.7", 4711, 8, "9.1.0"]') == peer_from_json(
        '[1, "node7", "10.0.0.7", 4711, 8]'
    )
