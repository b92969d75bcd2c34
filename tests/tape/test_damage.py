"""Truncated and corrupt tapes: a clear error or a counted loss, never a wrong field and never a crash."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from otel_torchdist.errors import TapeError
from otel_torchdist.model.kinds import ActivityKind, How, RecordKind, RunIdState, TapeState
from otel_torchdist.model.names import CallSiteName, GroupName, SignatureName
from otel_torchdist.model.operations import StepMark
from otel_torchdist.tape import layout
from otel_torchdist.tape.identity import TapeIdentity
from otel_torchdist.tape.layout import LiveWord, Word, prepare_activity
from otel_torchdist.tape.names.reader import NamesReader
from otel_torchdist.tape.reading.reader import TapeReader
from otel_torchdist.tape.status import TapeStatus
from otel_torchdist.tape.writer import TapeWriter

CAPACITY = 8  # of `small_writer`
SECTOR = 512
COUNTERS = frozenset({"records_dropped", "names_dropped", "overhead_ns", "overhead_calls", "request", "answer"})
NAMES = (
    GroupName("default", "default_pg", (0, 1, 2, 3), 0, "gloo", True),
    SignatureName("all_reduce", "sum", ((64, 128), ()), ("float32",), "cpu", 2),
    CallSiteName("train", "/home/user/trainé.py", 42),
    "RuntimeError",
)
"""Content of the dictionary of the tape below."""
OF_BATCHES = "entered", "ended", "steps", "activities_entered", "activities_ended"


@dataclass
class Reading:
    """Everything that a reader reports about a tape whose writer is gone."""

    identity: TapeIdentity | None = None
    status: TapeStatus | None = None
    records: dict[str, dict[int, Any]] = field(default_factory=lambda: {kind: {} for kind in (*OF_BATCHES, "open")})
    lost: int = 0


def read(path: Path) -> Reading:
    """Read a tape to its end; a reading without an identity means that it was refused."""
    reading = Reading()
    try:
        reader = TapeReader(path)
    except TapeError as error:
        assert str(path) in str(error)
        return reading
    reading.identity = reader.identity
    with contextlib.suppress(TapeError):
        reading.status = reader.status()
    for _ in range(3):
        batch = reader.poll()
        for kind in OF_BATCHES:
            reading.records[kind] |= {record.number: record for record in getattr(batch, kind)}
    reading.records["open"] = {operation.number: operation for operation in reader.open_operations()}
    reading.lost = reader.lost
    reader.close()
    return reading


def assert_true_or_lost(damaged: Reading, sound: Reading) -> None:
    """Check that everything reported is true, and everything missing is counted."""
    if damaged.identity is None:
        return
    assert damaged.identity == sound.identity
    if damaged.status is not None:
        for name in set(TapeStatus.__dataclass_fields__) - COUNTERS:
            assert getattr(damaged.status, name) == getattr(sound.status, name), name
    missing = 0
    for kind, said in damaged.records.items():
        true = sound.records[kind]
        assert said.items() <= true.items()
        missing += len(true) - len(said)
    assert damaged.lost > sound.lost or not missing


def write_something(writer: TapeWriter) -> None:
    """Fill ring and refuge with records of all kinds, in all states."""
    names = [writer.names.intern(name) for name in NAMES]

    def begin(sequence: int) -> int:
        group, signature, site, _ = names
        at = 1_000_000 + sequence
        return writer.begin(at, 7, sequence, 4096, group, signature, site, 0, -1, 5, 77, RecordKind.OPERATION, 1)

    for sequence in range(2):  # number 1 stays open in the refuge, number 2 ends late
        number = begin(sequence)
        writer.mark(number, Word.RETURNED, 10, How.CALL)
    for sequence in range(2, 12):
        number = begin(sequence)
        writer.complete(number, 1_000_000 + sequence, 1_000_100 + sequence, How.WAIT)
    writer.mark(1, Word.WAIT_ENTERED, 30, How.CALL)
    writer.complete(2, 1_000_001, 1_900_000, How.POLL)
    for word in (Word.RETURNED, Word.WAIT_ENTERED, Word.WAIT_RETURNED, Word.STARTED):
        writer.mark(begin(12), word, 100 + word, How.CALL)
    number = begin(13)
    writer.mark(number, Word.RETURNED, 50, How.CALL)
    writer.complete(number, 1_000_013, 1_000_500, How.FAILED, failure=names[3])
    writer.step_ended(7, 2_000_000, 14)
    writer.mark(begin(15), Word.WAIT_ENTERED, 60, How.CALL)
    number = writer.begin_prepared(1_000_016, 7, 0, prepare_activity(ActivityKind.OPTIMIZER_STEP, names[3], 77))
    writer.complete(number, 1_000_016, 1_000_600, How.FAILED, failure=names[3])
    writer.set_run_id(0x0123456789ABCDEF_FEDCBA9876543210, RunIdState.AGREED)
    writer.add_overhead(1234, 5)
    writer.finish(TapeState.FAILED, names[3])


@pytest.fixture
def tape(memory: Path, small_writer: TapeWriter) -> Path:
    """A tape whose writer is gone: a copy, which no process has locked."""
    write_something(small_writer)
    path = memory / "copy.tape"
    shutil.copy(small_writer.path, path)
    shutil.copy(small_writer.path.with_suffix(".names"), path.with_suffix(".names"))
    return path


@contextlib.contextmanager
def flipped(path: Path, bit: int) -> Iterator[None]:
    """Flip one bit of a file for a while."""
    with path.open("r+b", buffering=0) as file:
        sound = os.pread(file.fileno(), 1, bit // 8)
        os.pwrite(file.fileno(), bytes([sound[0] ^ (1 << bit % 8)]), bit // 8)
        try:
            yield
        finally:
            os.pwrite(file.fileno(), sound, bit // 8)


def assert_flips_are_seen(path: Path, first: int, end: int) -> None:
    """Flip every bit between two offsets, one at a time."""
    sound = read(path)
    assert sound.status is not None
    for bit in range(first * 8, end * 8):
        with flipped(path, bit):
            damaged = read(path)
        assert_true_or_lost(damaged, sound)
        assert damaged.lost <= sound.lost + CAPACITY, "one bit cannot cost more than a lap"
    assert read(path) == sound


def test_sound(tape: Path) -> None:
    """The tape of these tests contains what it should: open operations in refuge and ring, ends of several kinds."""
    reading = read(tape)
    still_open = reading.records["open"]
    assert sorted(still_open) == [1, 14, 15, 16, 17, 20]
    assert still_open[1].is_blocking
    assert still_open[1].returned_ns == 1_000_010
    assert reading.records["ended"][18].how is How.FAILED
    assert reading.records["steps"] == {19: StepMark(19, 2_000_000, 7, 14)}
    assert reading.records["activities_ended"][21].completed_ns == 1_000_600
    assert reading.status is not None
    assert reading.status.run_id == 0x0123456789ABCDEF_FEDCBA9876543210
    assert (reading.status.step, reading.status.state) == (8, TapeState.FAILED)


def test_bits_of_the_identity(tape: Path) -> None:
    """No bit of the identity can be flipped unnoticed: the tape is refused."""
    for bit in range(layout.IDENTITY_SIZE * 8):
        with flipped(tape, bit), pytest.raises(TapeError, match=r"copy\.tape: "):
            TapeReader(tape)


def test_bits_of_the_live_words(tape: Path) -> None:
    """Run id, step, heartbeat, clock, state and failure are verified; only counters may be wrong."""
    assert_flips_are_seen(tape, 8 * min(LiveWord), 8 * (max(LiveWord) + 1))


def test_bits_of_the_refuge(tape: Path) -> None:
    """Flips in the slots that are, were and never have been in use are harmless."""
    for slot in (layout.REFUGE_SLOTS - 1, layout.REFUGE_SLOTS - 2, 0):
        first = layout.REFUGE_OFFSET + slot * layout.RECORD_SIZE
        assert_flips_are_seen(tape, first, first + layout.RECORD_SIZE)


def test_bits_of_the_ring(tape: Path) -> None:
    """Flips in numbers, checksums, payloads and words, empty or not, of all kinds of records are harmless."""
    assert_flips_are_seen(tape, layout.RING_OFFSET, layout.tape_size(CAPACITY))


def test_lost_sectors(tape: Path) -> None:
    """A sector that reads as zeros is an error or a counted loss."""
    sound = read(tape)
    content = tape.read_bytes()
    for first in range(0, len(content), SECTOR):
        tape.write_bytes(content[:first] + bytes(SECTOR) + content[first + SECTOR :])
        assert_true_or_lost(read(tape), sound)


def test_truncated(tape: Path) -> None:
    """A tape of any length other than its own is refused, down to the empty file."""
    with pytest.raises(TapeError, match="truncated"), tape.open("ab") as file:
        file.write(b"\0")
        file.flush()
        TapeReader(tape)
    for length in range(layout.tape_size(CAPACITY) - 1, -1, -1):
        os.truncate(tape, length)
        with pytest.raises(TapeError, match=r"copy\.tape: truncated"):
            TapeReader(tape)


@given(content=st.binary(max_size=2000), identity=st.booleans())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None)
def test_any_bytes(tape: Path, content: bytes, identity: bool) -> None:
    """Any bytes at all, with or without a valid identity before them, end in an error that names the file."""
    path = tape.with_name("any.tape")
    path.write_bytes((tape.read_bytes()[: layout.IDENTITY_SIZE] if identity else b"") + content)
    with pytest.raises(TapeError, match=r"any\.tape: "):
        TapeReader(path)


@given(data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None)
def test_garbage(tape: Path, data: st.DataObject) -> None:
    """Garbage of any length anywhere: polls terminate, and no payload is wrong."""
    sound = read(tape)
    content = bytearray(tape.read_bytes())
    first = data.draw(st.integers(0, len(content) - 1) | st.integers(layout.RING_OFFSET, len(content) - 1))
    garbage = data.draw(st.binary(min_size=1, max_size=len(content) - first))
    content[first : first + len(garbage)] = garbage
    path = tape.with_name("garbage.tape")
    path.write_bytes(content)
    reading = read(path)
    for kind in ("entered", "steps"):
        assert reading.records[kind].items() <= sound.records[kind].items()


KNOWN = dict(enumerate(NAMES, start=1))


def read_names(path: Path) -> dict[int, object]:
    """Read all names of the dictionary that are known."""
    names = NamesReader(path)
    return {identity: name for identity in KNOWN if (name := names.get(identity)) is not None}


def test_bits_of_the_dictionary(tape: Path) -> None:
    """A flipped bit makes a name unknown, never another name."""
    path = tape.with_suffix(".names")
    for bit in range(path.stat().st_size * 8):
        with flipped(path, bit):
            assert read_names(path).items() <= KNOWN.items()


def test_cut_dictionary(tape: Path) -> None:
    """The complete lines of a truncated dictionary are known."""
    path = tape.with_suffix(".names")
    for length in range(path.stat().st_size, -1, -1):
        os.truncate(path, length)
        assert read_names(path) == dict([*KNOWN.items()][: path.read_bytes().count(b"\n")])
    path.unlink()
    assert read_names(path) == {}
