"""Messages between agents: what is sent arrives, and damaged or forged ones are refused, whatever they hold."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_torchdist.agent.exchange.codec import answer_of, views_of
from otel_torchdist.agent.exchange.wire import (
    Answer,
    Question,
    WireError,
    decode_answer,
    decode_question,
    encode,
    ruling_from,
    wire_ruling,
)
from otel_torchdist.judge.stall.events import Ruling
from otel_torchdist.model.calls import Channel, OperationId
from otel_torchdist.model.kinds import RecordKind
from otel_torchdist.model.reports.incident import Incident
from tests.agent.exchange.messages.test_codec import EVERYBODY, eventful_world, snapshot
from tests.support.worlds.fake_world import RUN


def decode_all(body: bytes) -> None:
    """Decode bytes as an answer and as a question, as an agent does."""
    for decode in (decode_question, decode_answer):
        try:
            message = decode(body)
            if isinstance(message, Answer):
                views_of(message, RUN, 5, 5)
            else:
                ruling_from(message.ruling, RUN)
        except WireError:
            pass


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200))
def test_random_bytes(body: bytes) -> None:
    """Any bytes are an answer or a WireError, and nothing else."""
    decode_all(body)


_WHOLE = encode(answer_of(snapshot(eventful_world()), 1, True, 5))


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_damaged_answers(data: st.DataObject) -> None:
    """An answer with missing or changed bytes is another answer or a WireError."""
    start = data.draw(st.integers(0, len(_WHOLE) - 1), label="start")
    length = data.draw(st.integers(0, 8), label="length")
    patch = data.draw(st.binary(max_size=8), label="patch")
    decode_all(_WHOLE[:start] + patch + _WHOLE[start + length :])
    with pytest.raises(WireError):
        decode_answer(_WHOLE[:start])


@pytest.mark.parametrize(
    "body",
    [
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\x91" * 1_000_000,
        b"\x81" * 1_000_000,
    ],
    ids=["endless array", "endless map", "endless bytes", "deep arrays", "deep maps"],
)
def test_bombs(body: bytes) -> None:
    """False lengths and endless nesting cost nothing and are WireErrors."""
    for decode in (decode_question, decode_answer):
        with pytest.raises(WireError):
            decode(body)


def test_question_and_ruling_arrive() -> None:
    """A ruling on a stall arrives with its text, its attributes and its place."""
    site = OperationId(Channel(RecordKind.OPERATION, EVERYBODY.key), 7)
    attributes = {"a": "text", "b": True, "c": 3, "d": 1.5, "e": ["x", "y"]}
    ruling = Ruling(Incident(RUN, "name", 3), 4, site, "rank 2 has not entered", attributes)
    question = Question(3, True, (3, 4), wire_ruling(ruling), (1, 1 << 63), (2,))
    there = decode_question(encode(question))
    assert there == question
    assert ruling_from(there.ruling, RUN) == ruling
    assert wire_ruling(None) is None and ruling_from(None, RUN) is None


def test_attributes_that_are_tuples_arrive_as_lists() -> None:
    """OpenTelemetry accepts both; MessagePack has only lists."""
    site = OperationId(Channel(RecordKind.OPERATION, ""), 1)
    ruling = Ruling(Incident(RUN, "name"), 1, site, "", {"hosts": ("a", "b")})
    there = ruling_from(decode_question(encode(Question(0, ruling=wire_ruling(ruling)))).ruling, RUN)
    assert there is not None
    assert there.attributes == {"hosts": ["a", "b"]}
