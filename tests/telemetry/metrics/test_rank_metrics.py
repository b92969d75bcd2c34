"""What is counted for one rank."""

import dataclasses
from pathlib import Path

import pytest

from otel_torchdist.model.kinds import Flag, How, Kernel, RecordKind, TapeState
from otel_torchdist.model.names import MAX_NAMES
from otel_torchdist.model.numerics import NumberFormat, Parameters
from otel_torchdist.tape.layout import LiveWord, Word
from otel_torchdist.tape.records.numerics import NumericsWord, float_word, pack_numerics, pack_parameters
from otel_torchdist.telemetry import semconv
from otel_torchdist.telemetry.metrics.node import NodeMetrics
from otel_torchdist.telemetry.metrics.snapshots import Duration
from tests.support.tapes.fake_tape import RUN, SECOND, WORLD, FakeTape, signature
from tests.support.tapes.metrics_node import Node


def test_operations_are_counted_when_they_are_entered(node: Node) -> None:
    """Count and bytes are those of entered operations, by group and operation, whether they have ended or not."""
    rank = node.add(rank=3)
    other = dataclasses.replace(WORLD, ranks=(0, 3))
    rank.run(message_bytes=100)
    rank.begin(message_bytes=11, thread=2)
    rank.run("broadcast", other, message_bytes=5)
    node.poll()
    labels, second = (RUN, "3", WORLD.key, "all_reduce"), (RUN, "3", other.key, "broadcast")
    assert node.values("torchdist_operations_total") == {labels: 2, second: 1}
    assert node.values("torchdist_message_bytes_total") == {labels: 111, second: 5}
    assert node.values("torchdist_operations_in_flight") == {labels: 1, second: 0}


def test_group_that_becomes_a_dimension(node: Node) -> None:
    """Dimensions of a mesh are known after its groups: the description follows, and nothing is counted anew."""
    rank = node.add()
    rank.run()
    node.poll()
    assert node.values("torchdist_group_info") == {(RUN, WORLD.key, "default_pg", "4"): 1}
    names = rank.writer.names
    names.replace(names.intern(WORLD), dataclasses.replace(WORLD, dimensions=("dp", "world")))
    rank.run("broadcast")  # names are read when there is a new one
    node.poll()
    rank.run()
    node.poll()
    assert node.values("torchdist_group_info") == {(RUN, WORLD.key, "default_pg, mesh dp and world", "4"): 1}
    assert node.values("torchdist_operations_total")[RUN, "0", WORLD.key, "all_reduce"] == 2


@pytest.mark.parametrize("how", How)
def test_coarse_ends_are_no_durations(node: Node, how: How) -> None:
    """Only an end shown by call, wait, callback or event counts as a duration; every end takes it out of flight."""
    rank = node.add()
    rank.run(how=how, lasts=2 * SECOND)
    node.poll()
    labels = (RUN, "0", WORLD.key, "all_reduce")
    timed = 1 if how in (How.CALL, How.WAIT, How.CALLBACK, How.EVENT) else 0
    assert node.values("torchdist_timed_operations_total") == {labels: timed}
    assert node.values("torchdist_timed_operation_seconds_total") == {labels: timed * 2.0}
    assert node.values("torchdist_operations_in_flight") == {labels: 0}
    assert len(node.durations) == timed


def test_durations_are_apart_by_size_of_message(node: Node) -> None:
    """A class includes its upper bound, and sums the bytes sent in its time; zero bytes belong to the smallest."""
    rank = node.add()
    for number, size in enumerate((0, 4096, 4097, 1 << 20, 1 << 28, (1 << 28) + 1, 1 << 40)):
        rank.run(message_bytes=size, sequence=number + 1, lasts=SECOND)
    node.poll()
    timed = node.metrics.snapshot().runs[RUN].timed
    assert {size: one.durations.count for (_, _, size), one in timed.items()} == {
        "4KiB": 2, "64KiB": 1, "1MiB": 1, "256MiB": 1, "larger": 2,
    }  # fmt: skip
    labels = (RUN, WORLD.key, "all_reduce")
    assert node.values("torchdist_timed_message_bytes_total")[(*labels, "4KiB")] == 4096
    assert node.values("torchdist_timed_operations_total") == {(RUN, "0", WORLD.key, "all_reduce"): 7}


def test_durations_are_made_only_for_listeners(tmp_path: Path) -> None:
    """Histograms need no listener; as soon as there is one, it gets each duration."""
    node, received = NodeMetrics(), list[Duration]()
    rank = FakeTape(tmp_path)
    metrics = node.track(rank.reader)
    rank.run()
    metrics.consume(rank.reader.poll(), rank.reader.status(), 0)
    node.listen(received.extend)
    rank.run(sequence=2, lasts=2 * SECOND)
    metrics.consume(rank.reader.poll(), rank.reader.status(), 0)
    node.ignore(received.extend)
    assert received == [Duration(semconv.OPERATION_DURATION, (RUN, WORLD.key, "all_reduce", "4KiB"), 2.0)]
    assert node.snapshot().runs[RUN].timed[WORLD.key, "all_reduce", "4KiB"].durations.count == 2


def test_members_of_groups(node: Node) -> None:
    """The number of members is a metric too, for arithmetic."""
    node.add().run()
    node.poll()
    assert node.values("torchdist_group_members") == {(RUN, WORLD.key): 4}


def test_age_grows_between_polls(node: Node) -> None:
    """The age is that of the oldest open operation at the time of the scrape, not of the last poll."""
    rank = node.add()
    rank.begin(at=90 * SECOND)
    rank.begin(at=95 * SECOND, sequence=2, thread=2)
    node.poll()
    labels = (RUN, "0", WORLD.key, "all_reduce")
    assert node.values("torchdist_operation_oldest_age_seconds") == {labels: 10.0}
    node.clock.now_ns += 7 * SECOND
    assert node.values("torchdist_operation_oldest_age_seconds") == {labels: 17.0}
    assert node.values("torchdist_operations_in_flight") == {labels: 2}


def test_age_is_zero_after_the_end(node: Node) -> None:
    """The series of an operation that has ended stays, at 0."""
    rank = node.add()
    number = rank.begin(at=90 * SECOND)
    node.poll()
    rank.writer.complete(number, 90 * SECOND, 91 * SECOND, How.CALL)
    node.poll()
    assert node.values("torchdist_operation_oldest_age_seconds") == {(RUN, "0", WORLD.key, "all_reduce"): 0.0}


def test_operation_without_a_wait_has_no_age(node: Node) -> None:
    """A gloo irecv is in flight, but ages only while a thread waits, and from that wait on."""
    rank = node.add()
    labels = (RUN, "0", WORLD.key, "recv")
    number = rank.begin("recv", at=10 * SECOND, flags=Flag.END_BY_WAIT | Flag.ASYNC | Flag.POINT_TO_POINT)
    rank.mark(number, Word.RETURNED, 1000)
    node.poll()
    assert node.values("torchdist_operations_in_flight") == {labels: 1}
    assert node.values("torchdist_operation_oldest_age_seconds") == {labels: 0.0}
    rank.mark(number, Word.WAIT_ENTERED, 85 * SECOND)
    node.poll()
    assert node.values("torchdist_operation_oldest_age_seconds") == {labels: 5.0}
    rank.mark(number, Word.WAIT_RETURNED, 86 * SECOND)  # it timed out: the operation continues, and no thread waits
    node.poll()
    assert node.values("torchdist_operation_oldest_age_seconds") == {labels: 0.0}


def test_blocking_call_ages_even_when_its_end_needs_a_wait(node: Node) -> None:
    """A thread that stays in the call itself is evidence enough."""
    rank = node.add()
    rank.begin("send", at=90 * SECOND, flags=Flag.END_BY_WAIT)
    node.poll()
    assert node.values("torchdist_operation_oldest_age_seconds") == {(RUN, "0", WORLD.key, "send"): 10.0}


def test_sequences_of_collectives(node: Node) -> None:
    """The newest collective entered, and the newest known to have ended, whatever the order of their ends."""
    rank = node.add()
    first = rank.begin(sequence=7)
    rank.run(sequence=8, how=How.POLL)
    rank.begin(sequence=9)
    rank.writer.complete(first, 0, 1, How.CALL)
    node.poll()
    assert node.values("torchdist_last_started_sequence") == {(RUN, "0", WORLD.key): 9}
    assert node.values("torchdist_last_completed_sequence") == {(RUN, "0", WORLD.key): 8}


def test_operations_on_a_device_begin_there(node: Node) -> None:
    """An operation in a device's queue is in flight; it ages, counts as started and lasts from its begin there."""
    rank = node.add()
    labels, group = (RUN, "0", WORLD.key, "all_reduce"), (RUN, "0", WORLD.key)
    first = rank.begin(at=80 * SECOND, sequence=1, flags=Flag.ON_DEVICE)
    rank.begin(at=81 * SECOND, sequence=2, flags=Flag.ON_DEVICE)
    node.poll()
    assert node.values("torchdist_operations_in_flight") == {labels: 2}
    assert node.values("torchdist_operation_oldest_age_seconds") == {labels: 0.0}
    assert node.values("torchdist_last_started_sequence") == {}
    rank.writer.mark(first, Word.STARTED, 15 * SECOND, How.EVENT)
    node.poll()
    assert node.values("torchdist_operation_oldest_age_seconds") == {labels: 5.0}
    assert node.values("torchdist_last_started_sequence") == {group: 1}
    rank.writer.complete(first, 80 * SECOND, 98 * SECOND, How.EVENT)
    node.poll()
    assert node.values("torchdist_last_completed_sequence") == {group: 1}
    assert node.values("torchdist_timed_operation_seconds_total") == {labels: 3.0}


def test_a_coarse_begin_is_no_duration(node: Node) -> None:
    """An exact end does not help if the begin is only known from the watchdog; but the sequence is completed."""
    rank = node.add()
    number = rank.begin(at=SECOND, sequence=3, flags=Flag.ON_DEVICE)
    rank.writer.mark(number, Word.STARTED, SECOND, How.WATCHDOG)
    rank.writer.complete(number, SECOND, 5 * SECOND, How.EVENT)
    node.poll()
    assert node.values("torchdist_timed_operations_total") == {(RUN, "0", WORLD.key, "all_reduce"): 0}
    assert node.values("torchdist_last_completed_sequence") == {(RUN, "0", WORLD.key): 3}


def test_operations_that_are_not_followed_are_counted(node: Node) -> None:
    """The metrics show how much of the work on devices is not followed."""
    rank = node.add()
    rank.run(how=How.UNTRACKED)
    rank.run(how=How.UNTRACKED, sequence=2)
    rank.run(how=How.EVENT, sequence=3)
    node.poll()
    assert node.values("torchdist_operations_untracked_total") == {(RUN, "0"): 2}


def test_failed_operations_are_counted(node: Node) -> None:
    """Operations that raised are counted, and no others."""
    rank = node.add()
    for sequence, how in enumerate((How.FAILED, How.CALL, How.ABANDONED, How.FAILED), start=1):
        rank.run(how=how, sequence=sequence)
    node.poll()
    assert node.values("torchdist_operations_failed_total") == {(RUN, "0"): 2}


@pytest.mark.parametrize("how", [How.UNTRACKED, How.ABANDONED, How.FAILED])
def test_unknown_end_completes_no_sequence(node: Node, how: How) -> None:
    """Operations on devices that were dropped or failed do not count as completed: there is no series."""
    rank = node.add()
    rank.run(how=how, sequence=5)
    node.poll()
    assert node.values("torchdist_last_started_sequence") == {(RUN, "0", WORLD.key): 5}
    assert node.values("torchdist_last_completed_sequence") == {}


def test_sequences_without_meaning_are_not_shown(node: Node) -> None:
    """Point-to-point operations count per peer and unaligned groups from anywhere: neither may accuse a rank."""
    rank = node.add()
    rank.run("send", flags=Flag.POINT_TO_POINT, sequence=40)
    rank.run(group=dataclasses.replace(WORLD, ranks=(0, 1), aligned=False), sequence=50)
    rank.run("", group=None, sequence=60)
    node.poll()
    assert node.values("torchdist_last_started_sequence") == {}
    assert node.values("torchdist_last_completed_sequence") == {}
    assert len(node.values("torchdist_operations_total")) == 3


def test_rendezvous_is_an_operation_of_its_own(node: Node) -> None:
    """Waiting for the creation of a group is in flight and ages, and touches no sequence."""
    rank = node.add()
    rank.begin("", WORLD, at=60 * SECOND, kind=RecordKind.RENDEZVOUS)
    node.poll()
    assert node.values("torchdist_operation_oldest_age_seconds") == {(RUN, "0", WORLD.key, "rendezvous"): 40.0}
    assert node.values("torchdist_last_started_sequence") == {}


def test_unknown_names_are_other(node: Node) -> None:
    """An operation whose names did not fit into the dictionary is still counted."""
    rank = node.add()
    rank.run("", group=None)
    node.poll()
    assert node.values("torchdist_operations_total") == {(RUN, "0", "other", "other"): 1}
    assert node.values("torchdist_groups_folded_total") == {(RUN, "0"): 0}


def test_loss_scale(node: Node) -> None:
    """The newest scale of a gradient scaler, and how often it has left out a step; nothing where there is none."""
    scaled, plain = node.add(0), node.add(1)
    for rank in (scaled, plain):
        rank.run()
    plain.writer.step_ended(0, SECOND, 1)
    scaled.writer.step_ended(0, SECOND, 1, scale=65_536.0)
    scaled.writer.step_ended(1, 2 * SECOND, 1, skipped=True, scale=32_768.0)
    node.poll()
    assert node.values("torchdist_amp_scale") == {(RUN, "0"): 32_768.0}
    assert node.values("torchdist_amp_skipped_steps_total") == {(RUN, "0"): 1}


def test_parameters_of_replicas(node: Node) -> None:
    """Each checksum is counted once, when it is known, and how many models and optimizers are left out."""
    rank = node.add(0)
    rank.run()
    for step, left_out in ((100, 2), (200, 3)):
        payload = pack_parameters(SECOND, step, step << 32, 1, 7, 10, Parameters(4, 0, left_out, ()))
        number = rank.writer.write_numerics(payload, {})
        node.poll()
        assert node.values("torchdist_parameter_checksums_total") == ({(RUN, "0"): 1} if step == 200 else {})
        rank.writer.mark(number, NumericsWord.OUTPUT_CHECKSUM, 0xABC, How.CALL)
        node.poll()
    assert node.values("torchdist_parameter_checksums_total") == {(RUN, "0"): 2}
    assert node.values("torchdist_replicas_left_out") == {(RUN, "0"): 3}


def test_headroom(node: Node) -> None:
    """How often the largest magnitude of the newest sampled operation could be doubled within its type."""
    rank = node.add(0)
    for nth, (number_format, magnitude) in enumerate([(NumberFormat.FLOAT16, 32_752.0), (0, 1.0)]):
        payload = pack_numerics(SECOND, 0, 1 + nth, rank.writer.names.intern(WORLD), -1, 0, 1, 4, 1, number_format)
        words = {which: float_word(-magnitude) for which in range(4)}
        rank.writer.write_numerics(payload, words)
        rank.run(sequence=1 + nth)
        node.poll()
        expected = {(RUN, "0", WORLD.key, "all_reduce"): pytest.approx(1.0)} if number_format else {}
        assert node.values("torchdist_input_headroom") == expected


def test_time_without_a_call(node: Node) -> None:
    """A rank is idle since it last entered or left an operation, or ended a step; a rank that is over has no series."""
    rank = node.add(monotonic_ns=0)
    node.clock.now_ns = 20 * SECOND
    number = rank.begin(at=12 * SECOND)
    node.poll()
    assert node.values("torchdist_idle_seconds") == {(RUN, "0"): 8.0}
    rank.writer.complete(number, 12 * SECOND, 13 * SECOND, How.CALL)
    node.poll()
    assert node.values("torchdist_idle_seconds") == {(RUN, "0"): 7.0}
    rank.writer.step_ended(1, 15 * SECOND, 1)
    node.poll()
    assert node.values("torchdist_idle_seconds") == {(RUN, "0"): 5.0}
    rank.writer.finish(TapeState.FAILED, 0)
    node.poll()
    assert node.values("torchdist_idle_seconds") == {}


def test_steps(node: Node) -> None:
    """A step's duration is the time between two consecutive marks; the first mark and one after a gap have none."""
    rank = node.add()
    for step, ended in ((4, 10.0), (5, 12.0), (7, 20.0), (8, 20.5)):
        rank.writer.step_ended(step, int(ended * SECOND), 1)
    node.poll()
    assert node.values("torchdist_timed_steps_total") == {(RUN, "0"): 2}
    assert node.values("torchdist_timed_step_seconds_total") == {(RUN, "0"): 2.5}
    assert node.metrics.snapshot().runs[RUN].steps.sum_s == 2.5
    assert node.durations == [
        Duration(semconv.STEP_DURATION, (RUN,), 2.0),
        Duration(semconv.STEP_DURATION, (RUN,), 0.5),
    ]


def test_own_cost_and_losses(node: Node, tmp_path: Path) -> None:
    """Overhead comes from the tape; lost records are those that the rank could not write and we could not read."""
    rank = node.add()
    rank.writer.add_overhead(2_500_000, 10)
    rank.writer.view().cast("Q")[LiveWord.RECORDS_DROPPED] = 1
    small = FakeTape(tmp_path, rank=1, capacity=64)
    metrics = node.metrics.track(small.reader)
    for sequence in range(200):
        small.run(sequence=sequence)
    node.poll()
    metrics.consume(small.reader.poll(), small.reader.status(), node.clock.now_ns)
    assert node.values("torchdist_overhead_seconds_total") == {(RUN, "0"): 0.0025, (RUN, "1"): 0.0}
    lost = node.values("torchdist_records_lost_total")
    assert lost == {(RUN, "0"): 1, (RUN, "1"): small.reader.lost}
    assert lost[RUN, "1"] + node.values("torchdist_operations_total")[RUN, "1", WORLD.key, "all_reduce"] == 200


def test_names_that_do_not_fit(node: Node) -> None:
    """A full dictionary is visible."""
    rank = node.add()
    for n in range(MAX_NAMES + 3):
        rank.writer.names.intern(f"name {n}")
    rank.writer.beat()
    node.poll()
    assert node.values("torchdist_names_dropped_total")[RUN, "0"] == rank.writer.names.dropped >= 3


def test_signature_names_the_operation(node: Node) -> None:
    """Shapes and dtypes make signatures, not series: the same operation in two shapes is one series."""
    rank = node.add()
    for shape in ((1,), (2, 3)):
        name = rank.writer.names.intern(dataclasses.replace(signature("all_reduce"), shapes=(shape,)))
        group = rank.writer.names.intern(WORLD)
        rank.writer.begin(0, 0, 1, 1, group, name, 0, 0, -1, 0, 1, RecordKind.OPERATION, 0)
    node.poll()
    assert node.values("torchdist_operations_total") == {(RUN, "0", WORLD.key, "all_reduce"): 2}


def test_what_records_a_rank(node: Node) -> None:
    """One series for each rank, with its kernel and torch, also after its end; none for a tape that does not say it."""
    native = node.add(rank=0, kernel=Kernel.NATIVE, torch="2.15.0+cpu")
    node.add(rank=1, kernel=Kernel.PYTHON, torch="2.13.0")
    node.add(rank=2)
    expected = {(RUN, "0", "native", "2.15.0+cpu"): 1, (RUN, "1", "python", "2.13.0"): 1}
    node.poll()
    assert node.values("torchdist_capture_info") == expected
    native.writer.finish(TapeState.FINISHED)
    node.poll()
    assert node.values("torchdist_capture_info") == expected
