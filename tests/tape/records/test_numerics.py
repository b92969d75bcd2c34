"""Values of tensors on a tape: they come back as they were written, with their operation, and never with another's."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_torchdist.model.kinds import How, RecordKind
from otel_torchdist.model.numerics import Numerics, NumericsFlag, Parameters, Unseen
from otel_torchdist.tape import seals
from otel_torchdist.tape.reading.pending_numerics import MAX_INCOMPLETE
from otel_torchdist.tape.reading.reader import TapeReader
from otel_torchdist.tape.records.numerics import (
    NumericsWord,
    checksum_word,
    float_word,
    mix_checksum,
    numerics_of,
    pack_numerics,
    pack_parameters,
    sum_checksums,
)
from otel_torchdist.tape.writer import TapeWriter
from tests.support.tapes.tapes import new_writer

SAMPLED = int(NumericsFlag.SAMPLED | NumericsFlag.COMPARABLE)


def write(writer: TapeWriter, sequence: int, flags: int = SAMPLED, thread: int = 7, smallest: float = -1.5) -> int:
    """Write the values of an operation; returns the record's number."""
    payload = pack_numerics(1_000, 3, sequence, 5, -1, 0, thread, 128, flags)
    words: dict[int, int] = {
        NumericsWord.SMALLEST: float_word(smallest, 0.25),
        NumericsWord.LARGEST: float_word(2.0, 0.0),
        NumericsWord.MEAN: float_word(0.5),
        NumericsWord.NORM: float_word(8.0),
        NumericsWord.INPUT_CHECKSUM: 0xABC,
    }
    return writer.write_numerics(payload, words)


def enter(writer: TapeWriter, sequence: int, thread: int = 7, group: int = 5) -> int:
    """Enter the operation itself."""
    return writer.begin(2_000, 3, sequence, 512, group, 0, 0, 0, -1, 0, thread, 1, 0)


def test_values_come_with_their_operation(writer: TapeWriter, reader: TapeReader) -> None:
    """All that was known when it was entered, and later the checksum of its outputs."""
    number = write(writer, 11)
    operation = enter(writer, 11)
    batch = reader.poll()
    [entered] = batch.entered
    values = entered.numerics
    assert values is not None
    assert values.zero_share == pytest.approx(0.25, abs=1e-4)
    assert values == Numerics(
        number, 1_000, 3, 11, 5, -1, 0, 7, 128, NumericsFlag(SAMPLED), -1.5, 2.0, 0.5, 8.0,
        values.zero_share, 0.0, 0xABC, None,
    )  # fmt: skip
    assert batch.numerics == [values]
    assert (batch.numbers, batch.lost) == ([number, operation], 0)
    assert reader.poll().is_empty
    writer.complete(operation, 2_000, 3_000, How.WAIT)
    writer.mark(number, NumericsWord.OUTPUT_CHECKSUM, 0xDEF, How.CALL)
    batch = reader.poll()
    [complete] = batch.numerics
    assert complete.output_checksum == 0xDEF
    assert [one.numerics for one in batch.ended] == [complete]
    assert reader.poll().is_empty


def test_values_of_an_operation_that_was_not_recorded(writer: TapeWriter, reader: TapeReader) -> None:
    """They are given to no other operation: not to the next one, and not to one of another thread or group."""
    write(writer, 11)
    enter(writer, 12)
    write(writer, 13)
    enter(writer, 13, thread=8)
    enter(writer, 13, group=6)
    write(writer, 14)
    write(writer, 15)
    enter(writer, 15)
    assert [one.numerics.sequence if one.numerics else 0 for one in reader.poll().entered] == [0, 0, 0, 15]


def test_overwritten_values(writer: TapeWriter, reader: TapeReader) -> None:
    """Outputs that become known when the record has left the ring are not reported as another record's."""
    number = write(writer, 1)
    writer.complete(enter(writer, 1), 2_000, 3_000, How.WAIT)
    reader.poll()
    for sequence in range(2, 70):
        writer.complete(enter(writer, sequence), 2_000, 3_000, How.WAIT)
    writer.mark(number, NumericsWord.OUTPUT_CHECKSUM, 0xDEF, How.CALL)
    batch = reader.poll()
    assert batch.numerics == []
    assert batch.lost == 0 or all(one.numerics is None for one in batch.entered)


def test_outputs_that_are_never_known(memory: Path) -> None:
    """They are awaited up to a bound, and the newest ones are still found."""
    tape = new_writer(memory, capacity=4096)
    reader = TapeReader.of_writer(tape)
    numbers = []
    for sequence in range(1, 2 * MAX_INCOMPLETE + 1):
        numbers.append(write(tape, sequence))
        tape.complete(enter(tape, sequence), 2_000, 3_000, How.WAIT)
    reader.poll()
    for number in numbers:
        tape.mark(number, NumericsWord.OUTPUT_CHECKSUM, 7, How.CALL)
    assert [one.sequence for one in reader.poll().numerics] == list(range(MAX_INCOMPLETE + 1, 2 * MAX_INCOMPLETE + 1))


def test_parameters(writer: TapeWriter, reader: TapeReader) -> None:
    """They belong to no operation, and are read as a whole once their checksum is known."""
    total, sums = sum_checksums([mix_checksum(nth, nth) for nth in range(100)])
    payload = pack_parameters(1_000, 300, 300 << 32 | 5, 9, 7, 4_096, Parameters(100, 3, 2, ()))
    number = writer.write_numerics(payload, dict(enumerate(sums)))
    assert reader.poll().numerics == []
    enter(writer, 11)
    writer.mark(number, NumericsWord.OUTPUT_CHECKSUM, total, How.CALL)
    batch = reader.poll()
    assert batch.numerics == [
        Numerics(
            number, 1_000, 300, 300 << 32 | 5, 9, -1, 0, 7, 4_096, NumericsFlag.PARAMETERS,
            output_checksum=total, parameters=Parameters(100, 3, 2, sums),
        )
    ]  # fmt: skip
    assert [one.numerics for one in batch.entered] == [None]


@given(
    st.floats(width=32) | st.sampled_from([1e300, -1e300, math.inf]),
    st.none() | st.floats(0, 1),
    st.integers(0, (1 << 64) - 1),
    st.integers(1, 1 << 40),
)
def test_words(value: float, share: float | None, checksum: int, number: int) -> None:
    """Every number, share and checksum fits its word, and comes back, finite ones finite."""
    fields = (1, 2, 3, 4, 5, 0, 0, 0, -1, 0, 7, RecordKind.NUMERICS, 1, 0, 0)
    contents = {0: float_word(value, share), 3: float_word(value), 4: checksum_word(checksum)}
    words = [seals.seal(number, contents.get(which, 0), How.CALL) * (which in contents) for which in range(6)]
    found = numerics_of(number, fields, words)
    assert found.smallest is not None
    assert math.isnan(found.smallest) == math.isnan(value)
    assert math.isinf(found.smallest) == math.isinf(value)
    if math.isfinite(value):
        assert found.smallest == pytest.approx(max(-3.4028235e38, min(value, 3.4028235e38)), rel=1e-6)
    assert found.zero_share == (None if share is None else pytest.approx(share, abs=1e-4))
    assert found.input_checksum == checksum_word(checksum) < 1 << 48
    assert (found.largest, found.mean, found.output_checksum) == (None, None, None)
    damaged = [word ^ 1 << 20 if word else 0 for word in words]
    assert numerics_of(number, fields, damaged).smallest is None


def test_values_that_a_device_finds_out(writer: TapeWriter, reader: TapeReader) -> None:
    """They are unknown until its words are there, and are then passed on, with an operation that ends too."""
    payload = pack_numerics(1_000, 3, 1, 5, -1, 0, 7, 128, int(NumericsFlag.PENDING))
    number = writer.write_numerics(payload, {})
    operation = enter(writer, 1)
    [early] = reader.poll().numerics
    assert (early.is_pending, early.is_finite) == (True, None)
    writer.mark(number, NumericsWord.SMALLEST, float_word(-1.0), How.EVENT)
    assert reader.poll().numerics == [], "half of it"
    writer.mark(number, NumericsWord.LARGEST, float_word(math.inf), How.EVENT)
    [late] = reader.poll().numerics
    assert (late.number, late.is_pending, late.is_finite) == (number, False, False)
    writer.complete(operation, 2_000, 3_000, How.WAIT)
    [ended] = reader.poll().ended
    assert ended.numerics == late


def test_why_there_is_none(writer: TapeWriter, reader: TapeReader) -> None:
    """Inputs and outputs that were not looked at have a reason, and are not said to be finite."""
    flags = SAMPLED | NumericsFlag.UNSEEN
    number = writer.write_numerics(pack_numerics(1_000, 3, 1, 5, -1, 0, 7, 0, int(flags), unseen=Unseen.GRAPH), {})
    enter(writer, 1)
    [found] = reader.poll().numerics
    assert (found.unseen, found.is_finite, found.unseen_output) == (Unseen.GRAPH, None, None)
    writer.mark(number, NumericsWord.OUTPUT_CHECKSUM, Unseen.FULL, How.UNTRACKED)
    [found] = reader.poll().numerics
    assert (found.output_checksum, found.unseen_output) == (None, Unseen.FULL)
