"""The functions that Python calls, with values that are odd or too late."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import pytest

from otel_torchdist.capture.core.call_sites import CodeKind
from otel_torchdist.model.kinds import How, RecordKind
from otel_torchdist.native.library import OperationLayout, find_library
from otel_torchdist.native.recording import NativePlan, NativeRecording, NativeTapeWriter, PlanFlag
from otel_torchdist.tape import layout
from otel_torchdist.tape.identity import identify
from otel_torchdist.tape.layout import Word
from tests.support.native.native_library import native_cache
from tests.support.tapes.directories import memory_directory

NEVER_GIVEN = (0, 1, 63, 1 << 31, (1 << 62) - 1, 1 << 63, (1 << 64) - 1)
TAIL = NativeTapeWriter.prepare(1, 1, 2, 3, 4, 0, 0, 6, RecordKind.OPERATION, 0)


@pytest.fixture(scope="module")
def library() -> Any:
    """The library."""
    return find_library(native_cache() / "otel-torchdist" / "native")


@pytest.fixture
def tape(library: Any) -> Iterator[NativeTapeWriter]:
    """An empty tape."""
    with memory_directory() as directory:
        writer = NativeTapeWriter(library, directory, identify(0, 0, 2, 64))
        yield writer
        writer.close()


@pytest.mark.parametrize("minor", [-1, 0, 9, 14, 99, 1 << 30])
def test_frames_of_other_pythons(library: Any, minor: int) -> None:
    """They are not known, and those of this Python stay in use."""
    assert not library.use_frames(minor, None)
    assert library._finds_frames()


@pytest.mark.parametrize("capacity", [64, 1 << 40, 1 << 57, (1 << 64) - 1])
def test_tape_that_cannot_be_mapped(library: Any, capacity: int) -> None:
    """There is no session then, also where the size is more than a number holds."""
    assert library.open(-1, capacity) is None


def test_numbers_never_given(tape: NativeTapeWriter) -> None:
    """No end is recorded for them, and nothing is written to the ring."""
    for number in NEVER_GIVEN:
        assert not tape.complete(number, 1, 2, How.WAIT)
        assert not tape.complete(number, 2, 1, How.FAILED, failure=9)
    for number in NEVER_GIVEN[1:]:
        tape.mark(number, Word.RETURNED, -1, How.CALL)
        tape.clear(number, Word.RETURNED)
    assert not any(tape.view()[layout.RING_OFFSET :])
    assert tape.open_numbers() == []
    assert tape.find_record_entered_at(0) == tape.find_record_entered_at((1 << 64) - 1) == 0


def test_times_that_go_back(tape: NativeTapeWriter) -> None:
    """An end before the entry, or years after it, is kept within what a word holds."""
    for ended in (0, 1 << 63, (1 << 64) - 1):
        number = tape.begin_prepared(1 << 62, -1, (1 << 64) - 1, TAIL)
        assert tape.complete(number, 1 << 62, ended, How.WAIT)
        assert not tape.complete(number, 1 << 62, ended, How.WAIT)
    assert tape.open_numbers() == []


def test_more_open_than_asked_for(library: Any, tape: NativeTapeWriter) -> None:
    """The library writes no more numbers than there is room for, and says how many there are."""
    for _ in range(5):
        tape.begin_prepared(1, 0, 1, TAIL)
    numbers = (ctypes.c_uint64 * 3)(0, 0, 77)
    assert library.tape_open(tape.session, numbers, 2) == 5
    assert list(numbers) == [1, 2, 77]
    assert library.tape_open(tape.session, None, 0) == 5


def test_plan_that_nobody_asked_for(tape: NativeTapeWriter) -> None:
    """It is not taken: no call of this thread was left to Python."""
    recording = NativeRecording(tape)
    group = recording.add_group(has_one_channel=True)
    planned = NativePlan(group, recording.new_counter(), None, TAIL, (1 << 32) - 1, PlanFlag.CALLBACK, None)
    assert not recording.plan(planned)
    assert not recording.plan(planned._replace(ragged_factor=(1 << 32) - 1))
    assert not recording.plan(None)
    recording.learn_code(0, int(CodeKind.BETWEEN))
    recording.forget_code()
    recording.end()
    recording.end()
    assert not recording.plan(planned)


@pytest.mark.parametrize("name", [b"", b"c10d", b"c10d::no_such", b"::", b"c10d::allreduce_::again", b"\xff\xfe"])
def test_operations_that_torch_has_not(library: Any, name: bytes) -> None:
    """No kernel is registered for them."""
    nowhere = OperationLayout(index=1, group=0, described=0, work=-1)
    assert not library.register(name, b"", ctypes.byref(nowhere))
    assert not library.register(b"c10d::allreduce_", b"no such overload", ctypes.byref(nowhere))
    assert not library.register_wait(name, False)
