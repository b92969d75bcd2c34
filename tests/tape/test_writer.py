"""The writer: what fits and what does not, what is recorded where, and what is left when it fails."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import stat
import struct
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from otel_torchdist.errors import TapeError
from otel_torchdist.model.kinds import Blame, Flag, How, Kernel, RecordKind, RunIdState, TapeState
from otel_torchdist.model.text import readable
from otel_torchdist.tape import layout, seals
from otel_torchdist.tape.identity import TapeIdentity, decode_identity, encode_identity, identify
from otel_torchdist.tape.layout import MAX_NUMBER, LiveWord, Word, pack_failure
from otel_torchdist.tape.reading.reader import TapeReader
from otel_torchdist.tape.writer import TapeWriter
from tests.support.tapes.tapes import begin, new_writer, open_descriptors, settled_descriptors
from tests.support.waiting import until

SECOND = 1_000_000_000
FITTING: dict[str, Any] = {
    "entered_ns": 5,
    "step": 6,
    "sequence": 7,
    "message_bytes": 8,
    "group": 9,
    "signature": 10,
    "call_site": 11,
    "label": 12,
    "peer": 13,
    "tag": 14,
    "thread": 15,
    "kind": RecordKind.OPERATION,
    "flags": Flag.ASYNC,
}
UNSIGNED_64 = {"entered_ns", "sequence", "message_bytes"}
SIGNED_32 = {"peer", "tag"}


def limits(name: str) -> tuple[int, int]:
    """The minimum and the maximum value of a field."""
    if name in UNSIGNED_64:
        return 0, 2**64 - 1
    if name == "step":
        return -(2**63), 2**63 - 1
    if name in SIGNED_32:
        return -(2**31), 2**31 - 1
    return 0, 255 if name in ("kind", "flags") else 2**32 - 1


@pytest.mark.parametrize("name", FITTING)
def test_what_does_not_fit(writer: TapeWriter, reader: TapeReader, name: str) -> None:
    """A value too large, too small or of another type raises and uses up no number: readers see no gap."""
    least, most = limits(name)
    wrong: list[Any] = [least - 1, most + 1, 1.5, None, "7"]
    for value in wrong:
        with pytest.raises(struct.error):
            writer.begin(**FITTING | {name: value})
    assert writer.begin(**FITTING) == 1
    batch = reader.poll()
    assert [(operation.number, batch.lost) for operation in batch.entered] == [(1, 0)]
    assert writer.open_numbers() == [1]


@pytest.mark.parametrize("name", [name for name in FITTING if name != "kind"])
def test_what_just_fits(writer: TapeWriter, reader: TapeReader, name: str) -> None:
    """The minimum and the maximum value come back as they were, as far as they are possible."""
    for value in (0, MAX_NUMBER) if name in UNSIGNED_64 or name == "step" else limits(name):
        writer.begin(**FITTING | {name: value})
        (operation,) = reader.poll().entered
        read = {field: getattr(operation, "label_word" if field == "label" else field) for field in FITTING}
        assert read == FITTING | {name: value}


@pytest.mark.parametrize(
    ("elapsed", "said"), [(0, 0), (1, 1), (-1, 0), (-(2**70), 0), (2**48 - 1, 2**48 - 1), (2**48, 2**48 - 1)]
)
def test_times_are_clipped(writer: TapeWriter, reader: TapeReader, elapsed: int, said: int) -> None:
    """A time before the operation's start counts as its start, one after 78 hours as 78 hours."""
    number = begin(writer, entered_ns=1_000)
    writer.mark(number, Word.RETURNED, elapsed, How.CALL)
    writer.complete(number, 1_000, 1_000 + elapsed, How.WAIT)
    (operation,) = reader.poll().ended
    assert operation.returned_ns == 1_000 + said
    assert operation.completed_ns == 1_000 + max(said, 1), "an operation that has ended took some time"


def test_late_end_brings_the_words_along(small_writer: TapeWriter) -> None:
    """Times stored in the refuge since a reader's last poll are not lost with the slot."""
    writer, reader = small_writer, TapeReader.of_writer(small_writer)
    number = begin(writer, entered_ns=1_000)
    for _ in range(8):
        begin(writer)
    reader.poll()
    writer.mark(number, Word.RETURNED, 10, How.CALL)
    writer.mark(number, Word.WAIT_ENTERED, 20, How.CALL)
    writer.mark(number, Word.WAIT_RETURNED, 30, How.CALL)
    writer.complete(number, 1_000, 1_031, How.FAILED, failure=pack_failure(9, Blame.TIMEOUT))
    (operation,) = reader.poll().ended
    assert operation.blame is Blame.TIMEOUT
    assert (operation.returned_ns, operation.wait_entered_ns, operation.wait_returned_ns) == (1_010, 1_020, 1_030)
    assert (operation.completed_ns, operation.how, operation.failure) == (1_031, How.FAILED, 9)


@pytest.mark.parametrize("laps", [0, 1])
def test_wait_that_begins_again(small_writer: TapeWriter, laps: int) -> None:
    """The end of a wait is taken back of one operation alone, in the ring and in the refuge, and of no ended one."""
    writer = small_writer
    ended, first, second = (begin(writer) for _ in range(3))
    writer.complete(ended, 1_000, 1_001, How.CALL)
    for _ in range(8 * laps):
        writer.complete(begin(writer), 1_000, 1_001, How.CALL)
    for number in (first, second):
        writer.mark(number, Word.WAIT_RETURNED, 30, How.CALL)
    writer.clear(second, Word.WAIT_RETURNED)
    writer.clear(ended, Word.WAIT_RETURNED)
    reader = TapeReader.of_writer(writer)
    reader.poll()
    for number in (first, second):
        writer.complete(number, 1_000, 1_050, How.POLL)
    found = {one.number: one.wait_returned_ns for one in reader.poll().ended}
    assert (found[first], found[second]) == (1_030, None)


def test_hanging_operation_outlives_a_lapped_reader(writer: TapeWriter, reader: TapeReader) -> None:
    """The one operation that hangs while thousands pass is found by a reader that missed them all."""
    hanging = begin(writer, sequence=77)
    for _ in range(10_000):
        writer.complete(begin(writer), 1_000, 1_001, How.CALL)
    late = TapeReader.of_writer(writer)
    for follower in (reader, late):
        batch = follower.poll()
        assert (batch.entered[0].number, batch.entered[0].sequence) == (hanging, 77)
        assert [operation.number for operation in follower.open_operations()] == [hanging]
        assert batch.lost == 10_001 - len(batch.entered)


def test_a_lapped_reader_reads_what_is_left(writer: TapeWriter) -> None:
    """One poll is enough, though more records are lost than it reads at most."""
    for _ in range(1_000):
        writer.complete(begin(writer), 1_000, 1_001, How.CALL)
    batch = TapeReader.of_writer(writer).poll(limit=100)
    assert batch.lost + len(batch.entered) == 1_000
    assert len(batch.entered) > 32


@contextlib.contextmanager
def again_and_again(action: Callable[[], None]) -> Iterator[None]:
    """Run something repeatedly in a thread of its own, and switch between threads far more often than usual."""
    stop, usual = threading.Event(), sys.getswitchinterval()

    def repeat() -> None:
        while not stop.is_set():
            action()

    thread = threading.Thread(target=repeat, daemon=True)
    sys.setswitchinterval(1e-5)
    thread.start()
    try:
        yield
    finally:
        sys.setswitchinterval(usual)
        stop.set()
        thread.join()


def test_clock_is_one(writer: TapeWriter, reader: TapeReader) -> None:
    """Wall clock and monotonic clock in a status belong together, however a poll falls between two beats."""
    seconds = itertools.count(1)
    heartbeats: set[int] = set()

    def next_second() -> tuple[int, int]:
        now = next(seconds) * SECOND
        return now, now + 1_700_000_000 * SECOND

    def look() -> bool:
        status = reader.status()
        assert status.realtime_ns - status.monotonic_ns == 1_700_000_000 * SECOND
        heartbeats.add(status.heartbeat_ns)
        return len(heartbeats) >= 20

    writer.beat(next_second)
    with again_and_again(lambda: writer.beat(next_second)):
        assert until(look)


def test_heartbeat_is_now(writer: TapeWriter, reader: TapeReader) -> None:
    """A beat records both clocks."""
    before, before_wall = time.monotonic_ns(), time.time_ns()
    writer.beat()
    status = reader.status()
    assert before // 1000 <= status.heartbeat_ns // 1000 <= time.monotonic_ns() // 1000
    assert before_wall // 1000 - 1 <= status.realtime_ns // 1000 <= time.time_ns() // 1000 + 1


@given(days=st.floats(0.01, 4_000), later_s=st.floats(-200 * 86_400, 3_600))
@example(days=407, later_s=0)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_time_of_a_request_to_end(memory: Path, days: float, later_s: float) -> None:
    """It is known to the microsecond on any machine, however long that is up, before or after the last heartbeat."""
    asked_us = round(days * 86_400_000_000)
    heartbeat_us = max(asked_us + round(later_s * 1_000_000), 0)
    with contextlib.closing(new_writer(memory)) as writer:
        writer.beat(lambda: (heartbeat_us * 1_000, heartbeat_us * 1_000))
        status = TapeReader.of_writer(writer).status()
        assert (status.asked_signal, status.asked_ns) == (0, 0)
        writer.mark_asked(15, asked_us * 1_000)
        status = TapeReader.of_writer(writer).status()
        assert (status.asked_signal, status.asked_ns) == (15, asked_us * 1_000)


def test_run_id_is_whole(writer: TapeWriter, reader: TapeReader) -> None:
    """A reader beside a writer that changes the run's id gets one of the ids or none, never a mix."""
    ids = [(1 << 128) - 1, 1]
    expected = {(run_id, state) for run_id in ids for state in (RunIdState.PROVISIONAL, RunIdState.AGREED)}
    seen: set[tuple[int, RunIdState]] = set()

    def publish() -> None:
        for run_id in ids:
            writer.set_run_id(run_id, RunIdState.PROVISIONAL)
            writer.set_run_id(run_id, RunIdState.AGREED)

    def look() -> bool:
        status = reader.status()
        seen.add((status.run_id, status.run_id_state))
        return expected <= seen

    with again_and_again(publish):
        assert until(look)
    assert seen <= expected | {(0, RunIdState.NONE)}


def test_agreement_does_not_hide_the_run_id(writer: TapeWriter, reader: TapeReader) -> None:
    """When only the state changes, the id stays readable throughout."""
    writer.set_run_id(5, RunIdState.PROVISIONAL)
    seen: list[RunIdState] = []

    def agree() -> None:
        writer.set_run_id(5, RunIdState.AGREED)
        writer.set_run_id(5, RunIdState.PROVISIONAL)

    def look() -> bool:
        status = reader.status()
        assert status.run_id == 5
        if seen[-1:] != [status.run_id_state]:
            seen.append(status.run_id_state)
        return len(seen) >= 10

    with again_and_again(agree):
        assert until(look)


def test_end_and_counters(writer: TapeWriter, reader: TapeReader) -> None:
    """A status shows what the writer reports about itself."""
    assert reader.status().state is TapeState.RUNNING
    writer.add_overhead(100, 2)
    writer.add_overhead(50, 1)
    writer.view().cast("Q")[LiveWord.RECORDS_DROPPED] = 1
    writer.finish(TapeState.FAILED, 17)
    status = reader.status()
    assert (status.overhead_ns, status.overhead_calls, status.records_dropped) == (150, 3, 1)
    assert (status.state, status.failure) == (TapeState.FAILED, 17)


def test_request_and_answer(writer: TapeWriter, reader: TapeReader) -> None:
    """A reader's request reaches the writer until it is answered."""
    assert writer.pending_request() == 0
    request = reader.request_stacks()
    assert writer.pending_request() == request == 1
    writer.answer_request(request)
    assert (writer.pending_request(), reader.status().answer) == (0, 1)
    assert reader.request_stacks() == 2


@given(
    identity=st.builds(
        TapeIdentity,
        nonce=st.integers(1, 2**64 - 1),
        pid=st.integers(0, 2**31 - 1),
        pid_start_ticks=st.integers(0, 2**64 - 1),
        pid_namespace=st.integers(0, 2**64 - 1),
        boot_id=st.integers(0, 2**128 - 1),
        rank=st.integers(-1, layout.MAX_RANKS - 1),
        local_rank=st.integers(-1, layout.MAX_RANKS - 1),
        world_size=st.integers(0, layout.MAX_RANKS),
        capacity=st.integers(layout.MIN_CAPACITY, layout.MAX_CAPACITY).map(layout.ring_capacity),
        monotonic_ns=st.integers(0, 2**62 - 1),
        realtime_ns=st.integers(0, 2**62 - 1),
        host=st.text(st.characters(codec="ascii", exclude_characters="\0"), max_size=64),
        parent=st.integers(0, 2**64 - 1),
        kernel=st.sampled_from(Kernel),
        torch=st.text(st.characters(codec="ascii", exclude_characters="\0"), max_size=40),
    )
)
@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
def test_identity_round_trip(identity: TapeIdentity) -> None:
    """The identity of the writer is read back field by field."""
    block = encode_identity(identity)
    assert len(block) == layout.IDENTITY_SIZE
    readable_texts = {"host": readable(identity.host), "torch": readable(identity.torch)}
    assert decode_identity(block, "here") == dataclasses.replace(identity, **readable_texts)


@pytest.mark.parametrize("beyond", [bytes(48), struct.pack("=Q40s", 99, b"")])
def test_identity_of_another_version(beyond: bytes) -> None:
    """Tapes of before the kernel was noted, and of kernels that are not known here, are of an unknown one."""
    identity = dataclasses.replace(identify(0, 0, 1, 8), parent=5, kernel=Kernel.NATIVE, torch="2.15.0")
    block = bytearray(encode_identity(identity))
    begin, end = struct.calcsize("=QIIQQQQQQqqqQQQ64sQ"), layout.IDENTITY_SIZE - 8
    block[begin : begin + len(beyond)] = beyond
    block[end:] = struct.pack("=Q", zlib.crc32(block[:end]))
    expected = dataclasses.replace(identity, kernel=Kernel.UNKNOWN, torch="")
    assert decode_identity(bytes(block), "here") == expected


def test_identity_of_this_process(memory: Path) -> None:
    """A tape shows which process of which boot writes it, and since when."""
    identity = TapeReader.of_writer(new_writer(memory)).identity
    assert (identity.rank, identity.local_rank, identity.world_size, identity.capacity) == (3, 1, 4, 8)
    assert identity.pid == os.getpid()
    assert identity.boot_id == int(Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", ""), 16)
    assert 0 <= time.monotonic_ns() - identity.monotonic_ns < 60_000_000_000
    offset = max(time.time_ns() - time.monotonic_ns() for _ in range(9))
    assert abs(offset - (identity.realtime_ns - identity.monotonic_ns)) < 20_000_000


def test_files(memory: Path) -> None:
    """A tape and its dictionary belong to the user alone, have their whole space reserved, and nothing else is left."""
    writer = new_writer(memory, capacity=1000)
    files = {path.name: path.stat() for path in memory.iterdir()}
    nonce = f"{writer.identity.nonce:016x}"
    assert set(files) == {f"{nonce}.tape", f"{nonce}.names"}
    assert {stat.S_IMODE(facts.st_mode) for facts in files.values()} == {0o600}
    assert files[f"{nonce}.tape"].st_blocks * 512 >= layout.tape_size(1000)


@pytest.mark.parametrize("capacity", [layout.CHECK_MODULUS, 2 * layout.CHECK_MODULUS])
def test_ring_that_would_fool_the_checksum(memory: Path, capacity: int) -> None:
    """In a ring of a multiple of the checksum's prime, late words would pass as another record's: one more then."""
    assert identify(0, 0, 1, capacity).capacity == capacity + 1
    with pytest.raises(TapeError, match=f"cannot hold {capacity} records"):
        TapeWriter(memory, dataclasses.replace(identify(0, 0, 1, 8), capacity=capacity))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"capacity": 7}, "cannot hold 7 records"),
        ({"capacity": layout.MAX_CAPACITY + 1}, "cannot hold"),
        ({"rank": 2**63}, "cannot create a tape"),
        ({"nonce": 5}, "File exists"),
    ],
)
def test_failure_leaves_nothing(memory: Path, change: dict[str, int], reason: str) -> None:
    """A tape that cannot be created is an error, and leaves no file or descriptor."""
    (memory / "0000000000000005.names").touch()
    before = settled_descriptors()
    with pytest.raises(TapeError, match=reason) as failure:
        TapeWriter(memory, dataclasses.replace(identify(0, 0, 1, 8), **change))
    assert str(memory) in str(failure.value)
    del failure
    assert open_descriptors() == before
    assert [path.name for path in memory.iterdir()] == ["0000000000000005.names"]


@given(number=st.integers(1, 2**64 - 1), value=st.integers(0, layout.MAX_DURATION_NS), how=st.sampled_from(How))
@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
def test_seal(number: int, value: int, how: How) -> None:
    """A word is readable for its own record, for none of the next thousand laps, and not with any bit flipped."""
    word = seals.seal(number, value, how)
    assert seals.unseal(number, word) == (value, how)
    assert all(seals.unseal(number + 16_384 * lap, word) is None for lap in range(1, 1000))
    assert all(seals.unseal(number, word ^ 1 << bit) is None for bit in range(64))


def test_flipped_bit_in_an_empty_word() -> None:
    """No single bit makes a time out of nothing, whatever the record's number."""
    numbers = range(layout.CHECK_MODULUS)
    assert all(seals.unseal(number, 1 << bit) is None for number in numbers for bit in range(64))
