"""The writer in C++ against that in Python: the same calls leave the same bytes."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from otel_torchdist.model.kinds import How, RecordKind
from otel_torchdist.native.header import PATH, header
from otel_torchdist.native.library import find_library
from otel_torchdist.native.recording import NativeTapeWriter
from otel_torchdist.tape import layout
from otel_torchdist.tape.identity import identify
from otel_torchdist.tape.layout import LiveWord, Word
from otel_torchdist.tape.writer import TapeWriter
from tests.support.native.native_library import native_cache
from tests.support.tapes.directories import memory_directory

CAPACITY = 8
HOWS = (How.CALL, How.WAIT, How.CALLBACK, How.FAILED)
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("begin"), st.integers(1, 2**62), st.integers(0, 2**63), st.integers(-1, 2**31 - 1)),
        st.tuples(st.just("mark"), st.integers(0, 90), st.sampled_from(list(Word)), st.integers(-5, 2**60)),
        st.tuples(st.just("clear"), st.integers(0, 90), st.just(Word.WAIT_RETURNED), st.just(0)),
        st.tuples(st.just("complete"), st.integers(0, 90), st.sampled_from(HOWS), st.integers(-5, 2**60)),
        st.tuples(st.just("step"), st.integers(1, 2**60), st.integers(0, 99), st.just(0)),
    ),
    max_size=120,
)


@pytest.fixture(scope="module")
def library() -> Any:
    """The library."""
    return find_library(native_cache() / "otel-torchdist" / "native")


@contextlib.contextmanager
def writers(library: Any) -> Iterator[tuple[TapeWriter, NativeTapeWriter]]:
    """Two writers with equal identities."""
    with memory_directory() as one, memory_directory() as other:
        identity = dataclasses.replace(identify(0, 0, 2, CAPACITY), nonce=7)
        both = TapeWriter(one, identity), NativeTapeWriter(library, other, identity)
        yield both
        for writer in both:
            writer.close()


def apply(writer: TapeWriter, actions: list[tuple[Any, ...]]) -> list[object]:
    """Perform actions; return what they returned."""
    entered: dict[int, int] = {}
    returned: list[object] = []
    for kind, first, second, third in actions:
        if kind == "begin":
            tail = TapeWriter.prepare(second % 2**64, 1, 2, 3, 4, third, 5, 6, RecordKind.OPERATION, 1)
            number = writer.begin_prepared(first, 3, 4, tail)
            entered[number] = first
            returned += [number, writer.find_record_entered_at(first)]
        elif kind == "mark":
            writer.mark(first, second, third, How.CALL)
        elif kind == "clear":
            writer.clear(first, second)
        elif kind == "complete" and first in entered:
            failure = 9 if second is How.FAILED else 0
            returned.append(writer.complete(first, entered[first], entered[first] + third, second, failure))
        elif kind == "step":
            writer.step_ended(second, first, 5)
    return [*returned, sorted(writer.open_numbers())]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(actions=ACTIONS)
def test_same_bytes(library: Any, actions: list[tuple[Any, ...]]) -> None:
    """Ring and refuge are equal byte for byte, also where laps, late ends and a full refuge come into it."""
    with writers(library) as (python, native):
        assert apply(python, actions) == apply(native, actions)
        assert bytes(python.view()[layout.RING_OFFSET :]) == bytes(native.view()[layout.RING_OFFSET :])
        assert refuge_of(python) == refuge_of(native)
        for word in (LiveWord.NEXT_NUMBER, LiveWord.STEP, LiveWord.RECORDS_DROPPED):
            assert python.view().cast("Q")[word] == native.view().cast("Q")[word]


def refuge_of(writer: TapeWriter) -> list[bytes]:
    """The records in the refuge, whatever their places; of a free place the words that are left mean nothing."""
    places = range(layout.REFUGE_OFFSET, layout.RING_OFFSET, layout.RECORD_SIZE)
    records = [bytes(writer.view()[place : place + layout.RECORD_SIZE]) for place in places]
    return sorted(record for record in records if any(record[:8]))


def test_full_refuge(library: Any) -> None:
    """Operations beyond the refuge's 64 are counted as dropped, and end without their words, in both."""
    actions = [("begin", at, 1, 0) for at in range(1, 90)]
    actions += [("complete", number, How.WAIT, 5) for number in range(1, 90)]
    with writers(library) as (python, native):
        assert apply(python, actions) == apply(native, actions)
        dropped = [writer.view().cast("Q")[LiveWord.RECORDS_DROPPED] for writer in (python, native)]
        assert dropped[0] == dropped[1] > 0


def test_closed_tape_can_be_written(library: Any) -> None:
    """Threads that are late store into the library's own map."""
    with writers(library) as (_, native):
        number = native.begin_prepared(5, 0, 1, TapeWriter.prepare(1, 1, 2, 3, 4, 0, 0, 6, RecordKind.OPERATION, 0))
        native.close()
        assert native.complete(number, 5, 9, How.CALLBACK)
        assert not native.open_numbers()


def test_header_is_current() -> None:
    """The compiled layout is that of `tape.layout`; `python -m otel_torchdist.native.header` writes it."""
    assert PATH.read_text() == header()
