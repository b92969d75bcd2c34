"""Ranks and runs that come and go, and their stalls."""

import dataclasses
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from otel_torchdist.agent.reading.outcomes import show
from otel_torchdist.judge.stall.findings.slow import PathMeasured
from otel_torchdist.model.kinds import RunIdState, TapeState
from otel_torchdist.model.reports.finding import Finding, FindingKind, FindingOver, Gain, PathLengths, Severity
from otel_torchdist.model.reports.incident import Incident
from otel_torchdist.model.snapshot import WorldSnapshot
from otel_torchdist.tape.reading.reader import TapeReader
from otel_torchdist.telemetry.metrics import labels as run_label
from otel_torchdist.telemetry.metrics.node import MAX_FINDINGS, NodeMetrics
from otel_torchdist.telemetry.metrics.snapshots import ArrivalCounts, VerdictStatus
from tests.support.tapes.fake_tape import RUN, RUN_ID, SECOND, WORLD, FakeTape
from tests.support.tapes.metrics_node import METRICS, Node, series_of

STALL = VerdictStatus(RUN_ID, WORLD.key, "all_reduce", "absent", (2, 0, 1), 0xABC, "4/4")


def test_spans_dropped_are_read_when_asked(tmp_path: Path) -> None:
    """The node's own counter has no labels and follows its source."""
    dropped = [3]
    metrics = NodeMetrics(spans_dropped=lambda: dropped[0])
    read = METRICS["torchdist_spans_dropped_total"].read
    assert list(read(metrics.snapshot())) == [((), 3)]
    dropped[0] = 9
    assert list(read(metrics.snapshot())) == [((), 9)]


def test_settled_run_is_shown_at_once(node: Node) -> None:
    """An agreed id, and a local one that will never be agreed on, need no waiting."""
    node.add(0)
    node.add(1, run_id=0xFEED << 112, state=RunIdState.UNAGREED)
    node.poll()
    assert node.values("torchdist_up") == {(RUN, "0"): 1, ("feed0000", "1"): 1}


def test_provisional_run_is_held_back(node: Node) -> None:
    """Nothing is shown or published under an id that may still change, and nothing is lost by that."""
    rank = node.add(run_id=0xBAD << 100, state=RunIdState.PROVISIONAL)
    rank.run(lasts=3 * SECOND)
    node.poll()
    assert list(series_of(node.metrics.snapshot())) == [("torchdist_spans_dropped_total", ())]
    assert node.durations == []
    rank.writer.set_run_id(RUN_ID, RunIdState.AGREED)
    rank.run(lasts=SECOND, sequence=2)
    node.poll()
    labels = (RUN, "0", WORLD.key, "all_reduce")
    assert node.values("torchdist_operations_total") == {labels: 2}
    assert [duration.seconds for duration in node.durations] == [3.0, 1.0]
    assert {duration.labels for duration in node.durations} == {(RUN, WORLD.key, "all_reduce", "4KiB")}


def test_the_critical_path_is_that_of_the_newest_steps(node: Node) -> None:
    """A path replaces the one before, and of two gains with the same labels the greater one is shown."""
    node.add(0)
    node.poll()
    assert not node.values("torchdist_critical_path_seconds")
    for seconds in (0.5, 0.01):
        gains = (Gain("line", (2,), "all_reduce", seconds), Gain("line", (2,), "all_reduce", seconds / 2))
        lengths = PathLengths({"computing": 3 * seconds, "transfer": seconds}, {2: seconds}, gains)
        show(PathMeasured(RUN_ID, lengths), node.metrics)
    assert node.values("torchdist_critical_path_seconds") == {(RUN, "computing"): 0.03, (RUN, "transfer"): 0.01}
    assert node.values("torchdist_critical_path_rank_seconds") == {(RUN, "2"): 0.01}
    assert node.values("torchdist_critical_path_gain_seconds") == {(RUN, "line", "2", "all_reduce"): 0.01}


def found(kind: FindingKind, rank: int) -> Finding:
    """A finding on one rank."""
    incident, world = Incident(RUN_ID, f"{kind.value} {rank}"), WorldSnapshot(RUN_ID, 0, {})
    return Finding(kind, Severity.ERROR, incident, (rank,), WORLD.key, "all_reduce", "a sentence", world)


def test_findings_stay_until_they_hold_no_longer(node: Node) -> None:
    """Findings of a run coexist; a straggler that is none any more is removed, and only it."""
    node.add(0)
    node.poll()
    mismatched, straggler = found(FindingKind.MISMATCHED, 1), found(FindingKind.STRAGGLER, 2)
    other = found(FindingKind.STRAGGLER, 3)
    for finding in (mismatched, straggler, other):
        node.metrics.add_finding(finding)
    node.metrics.drop_finding(FindingOver(FindingKind.STRAGGLER, RUN_ID, (2,), WORLD.key))
    assert node.values("torchdist_finding_info") == {
        (RUN, WORLD.key, "all_reduce", "mismatched", "1", f"{mismatched.incident.trace_id:032x}"): 1,
        (RUN, WORLD.key, "all_reduce", "straggler", "3", f"{other.incident.trace_id:032x}"): 1,
    }
    for number in range(2 * MAX_FINDINGS):
        node.metrics.add_finding(dataclasses.replace(mismatched, ranks=(number,)))
    assert len(node.values("torchdist_finding_info")) == MAX_FINDINGS


def test_last_arrivals_add_up(node: Node) -> None:
    """Which rank came last, and for how long the others waited, is counted from one comparison to the next."""
    node.add(0)
    node.poll()
    node.metrics.add_arrivals(RUN_ID, WORLD.key, ArrivalCounts(64, 1.0, Counter({0: 60, 1: 4}), {0: 1.5, 1: 0.25}))
    node.metrics.add_arrivals(RUN_ID, WORLD.key, ArrivalCounts(64, 0.5, Counter({0: 64}), {0: 2.0}))
    assert node.values("torchdist_arrivals_compared_total") == {(RUN, WORLD.key): 128}
    assert node.values("torchdist_waited_seconds_total") == {(RUN, WORLD.key): 1.5}
    assert node.values("torchdist_last_arrivals_total") == {(RUN, "0", WORLD.key): 124, (RUN, "1", WORLD.key): 4}
    assert node.values("torchdist_lateness_seconds_total") == {(RUN, "0", WORLD.key): 3.5, (RUN, "1", WORLD.key): 0.25}


@pytest.mark.parametrize(
    ("run_id", "state", "label"), [(RUN_ID, RunIdState.PROVISIONAL, RUN), (0, RunIdState.NONE, "")]
)
def test_hang_in_the_first_collective_is_shown(node: Node, run_id: int, state: RunIdState, label: str) -> None:
    """After a while a rank is shown under its current id: a job that hangs at once never settles one."""
    rank = node.add(run_id=run_id, state=state)
    rank.begin(at=100 * SECOND)
    node.poll()
    assert node.values("torchdist_up") == {}
    node.clock.now_ns += int(run_label.HOLD_BACK_S * SECOND)
    node.poll()
    assert node.values("torchdist_operation_oldest_age_seconds") == {(label, "0", WORLD.key, "all_reduce"): 5.0}


def test_settled_run_replaces_an_unsettled_one(node: Node) -> None:
    """Series under an id that turned out wrong end, and the rank continues under the right one with all its counts."""
    rank = node.add(run_id=0xBAD << 112, state=RunIdState.PROVISIONAL)
    rank.run()
    node.poll()
    node.clock.now_ns += 10 * SECOND
    node.poll()
    assert node.values("torchdist_up") == {("0bad0000", "0"): 1}
    rank.writer.set_run_id(RUN_ID, RunIdState.AGREED)
    rank.run(sequence=2)
    node.poll()
    assert node.values("torchdist_operations_total") == {(RUN, "0", WORLD.key, "all_reduce"): 2}
    assert set(node.metrics.snapshot().runs) == {RUN}
    assert {duration.labels[0] for duration in node.durations} == {RUN}


def test_newer_tape_of_the_same_rank_stands(node: Node) -> None:
    """Two tapes that claim the same rank of the same run never give one series twice."""
    node.add(2).run()
    node.add(2).run("barrier")
    node.poll()
    names = [operation for _, _, _, operation in node.values("torchdist_operations_total")]
    assert names == ["barrier"]
    assert max(Counter(series_of(node.metrics.snapshot())).values()) == 1


WRITE_AND_WAIT = """
import sys, time
from pathlib import Path
from otel_torchdist.model.kinds import TapeState
from tests.support.tapes.fake_tape import FakeTape
rank = FakeTape(Path(sys.argv[1]), rank=1)
rank.begin(at=time.monotonic_ns())
print(rank.writer.path, flush=True)
sys.stdin.readline()
rank.writer.finish(TapeState[sys.argv[2]])
print("said", flush=True)
sys.stdin.readline()
"""


@contextmanager
def other_process(directory: Path, state: TapeState) -> Iterator[tuple[subprocess.Popen[str], TapeReader]]:
    """A process with an operation open; a line on its stdin makes it print `state`, another makes it end."""
    with subprocess.Popen(
        [sys.executable, "-c", WRITE_AND_WAIT, str(directory), state.name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        reader = TapeReader(Path(process.stdout.readline().strip()))
        try:
            yield process, reader
        finally:
            reader.close()
            process.kill()


def report(process: subprocess.Popen[str]) -> str:
    """Release the process; returns what it prints then."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return process.stdout.readline().strip()


def test_rank_that_is_killed_is_down(tmp_path: Path) -> None:
    """`up` is 0 once a death is known, and a dead rank is in no operation: its age does not grow."""
    metrics = NodeMetrics()
    with other_process(tmp_path, TapeState.FINISHED) as (process, reader):
        rank = metrics.track(reader)
        rank.consume(reader.poll(), reader.status(), time.monotonic_ns())
        snapshot = metrics.snapshot()
        assert dict(METRICS["torchdist_up"].read(snapshot)) == {(RUN, "1"): 1}
        assert (
            dict(METRICS["torchdist_operation_oldest_age_seconds"].read(snapshot))[RUN, "1", WORLD.key, "all_reduce"]
            > 0
        )
        process.kill()
        process.wait()
        rank.consume(reader.poll(), reader.status(), time.monotonic_ns())
        assert dict(METRICS["torchdist_up"].read(metrics.snapshot())) == {(RUN, "1"): 1}
        rank.mark_ended(cleanly=False)
    snapshot = metrics.snapshot()
    labels = (RUN, "1", WORLD.key, "all_reduce")
    assert dict(METRICS["torchdist_up"].read(snapshot)) == {(RUN, "1"): 0}
    assert dict(METRICS["torchdist_operations_in_flight"].read(snapshot)) == {labels: 0}
    assert dict(METRICS["torchdist_operation_oldest_age_seconds"].read(snapshot)) == {labels: 0}
    assert dict(METRICS["torchdist_operations_total"].read(snapshot)) == {labels: 1}


@pytest.mark.parametrize(("state", "up"), [(TapeState.FINISHED, {}), (TapeState.FAILED, {(RUN, "1"): 0})])
def test_rank_that_has_finished_raises_no_alarm(tmp_path: Path, state: TapeState, up: dict[object, float]) -> None:
    """`up == 0` always means trouble: a rank that ended as it should has no such series, a failed one has 0."""
    metrics = NodeMetrics()
    with other_process(tmp_path, state) as (process, reader):
        rank = metrics.track(reader)
        assert report(process) == "said"
        for end in (False, True):
            if end:
                report(process)
                process.wait()
            rank.consume(reader.poll(), reader.status(), time.monotonic_ns())
            snapshot = metrics.snapshot()
            assert dict(METRICS["torchdist_up"].read(snapshot)) == up
            assert set(dict(METRICS["torchdist_operations_in_flight"].read(snapshot)).values()) == {0}


def test_sums_of_the_node_outlive_a_rank(node: Node) -> None:
    """A forgotten rank's series end, but the node's histograms do not decrease: that would look like a restart."""
    first, second = node.add(0), node.add(1)
    for rank in (first, second):
        rank.run(lasts=2 * SECOND)
        rank.writer.step_ended(0, 0, 1)
        rank.writer.step_ended(1, SECOND, 1)
    node.poll()
    node.forget(first)
    node.poll()
    run = node.metrics.snapshot().runs[RUN]
    assert node.values("torchdist_operations_total") == {(RUN, "1", WORLD.key, "all_reduce"): 1}
    assert run.timed[WORLD.key, "all_reduce", "4KiB"].durations.count == 2
    assert run.steps.sum_s == 2.0
    node.forget(second)
    assert list(series_of(node.metrics.snapshot())) == [("torchdist_spans_dropped_total", ())]


def test_runs_are_apart(node: Node) -> None:
    """After a restart the new run's series coexist with the old one's, which end with its last rank."""
    old, new = node.add(0), node.add(0, run_id=0xCAFE << 112)
    old.run()
    new.run()
    node.poll()
    assert set(node.metrics.snapshot().runs) == {RUN, "cafe0000"}
    node.forget(old)
    assert set(node.metrics.snapshot().runs) == {"cafe0000"}


def test_forgotten_rank_hands_out_its_durations(node: Node) -> None:
    """A rank that never settled its run publishes what it has when it is forgotten."""
    rank = node.add(run_id=RUN_ID, state=RunIdState.PROVISIONAL)
    rank.run()
    node.poll()
    assert node.durations == []
    node.forget(rank)
    assert [duration.seconds for duration in node.durations] == [1.0]


def test_stall_is_shown_beside_stable_zeros(node: Node) -> None:
    """Every known group has `stalled` with the same labels all the time; the verdict is in a series of its own."""
    tensor = dataclasses.replace(WORLD, ranks=(0, 1), description="tensor")
    rank = node.add()
    rank.run()
    rank.run(group=tensor)
    node.poll()
    quiet = {(RUN, WORLD.key): 0.0, (RUN, tensor.key): 0.0}
    assert node.values("torchdist_stalled") == quiet
    assert node.values("torchdist_stall_info") == {}
    node.metrics.set_stall(STALL)
    assert node.values("torchdist_stalled") == {**quiet, (RUN, WORLD.key): 1.0}
    info = (RUN, WORLD.key, "all_reduce", "absent", "0-2", "4/4", f"{0xABC:032x}")
    assert node.values("torchdist_stall_info") == {info: 1}
    node.metrics.set_stall(dataclasses.replace(STALL, group_key=tensor.key, verdict="dead"))
    assert node.values("torchdist_stalled") == {**quiet, (RUN, tensor.key): 1.0}
    assert [labels[3] for labels in node.values("torchdist_stall_info")] == ["dead"]
    node.metrics.clear_stall(RUN_ID)
    assert node.values("torchdist_stalled") == quiet
    assert node.values("torchdist_stall_info") == {}


def test_stall_needs_no_settled_run_and_no_local_member(node: Node) -> None:
    """A stall is shown while ranks are held back, and so is one of a group that no local rank has used."""
    node.add(state=RunIdState.PROVISIONAL)
    node.poll()
    node.metrics.set_stall(dataclasses.replace(STALL, group_key="0badcafe"))
    assert node.values("torchdist_stalled") == {(RUN, "0badcafe"): 1.0}
    node.metrics.clear_stall(RUN_ID)
    assert node.values("torchdist_stalled") == {(RUN, "0badcafe"): 0.0}
    node.metrics.set_stall(dataclasses.replace(STALL, group_key=""))
    assert node.values("torchdist_stalled") == {(RUN, "0badcafe"): 0.0, (RUN, "other"): 1.0}


def test_stall_outlives_the_ranks(node: Node) -> None:
    """The verdict on a job that has died stays until it is cleared; then nothing is left."""
    rank = node.add()
    rank.begin()
    node.poll()
    node.metrics.set_stall(STALL)
    node.forget(rank)
    assert node.values("torchdist_stalled") == {(RUN, WORLD.key): 1.0}
    node.metrics.clear_stall(RUN_ID)
    last = node.add(1)
    node.poll()
    node.forget(last)
    assert node.values("torchdist_stalled") == {}


def test_end_outlives_the_ranks(node: Node) -> None:
    """How an attempt has ended stays although its ranks are forgotten, and goes without leaving anything."""
    rank = node.add()
    rank.begin()
    node.poll()
    node.metrics.set_end(VerdictStatus(RUN_ID, WORLD.key, "all_reduce", "dead", (2,), 0xABC))
    node.forget(rank)
    ended = (RUN, WORLD.key, "all_reduce", "dead", "2", f"{0xABC:032x}")
    assert node.values("torchdist_attempt_ended_info") == {ended: 1}
    node.metrics.set_end(VerdictStatus(RUN_ID, "", "", "ended", (), 0))
    assert node.values("torchdist_attempt_ended_info") == {(RUN, "", "", "ended", "", ""): 1}
    node.metrics.clear_end(RUN_ID)
    assert list(series_of(node.metrics.snapshot())) == [("torchdist_spans_dropped_total", ())]


def test_scrapes_and_the_reader_do_not_disturb_each_other(tmp_path: Path) -> None:
    """A snapshot that is taken while the reader counts is of one moment: its sums agree, and nothing decreases."""
    rank = FakeTape(tmp_path, capacity=16_384)
    for sequence in range(8_000):
        rank.run(sequence=sequence, lasts=SECOND)
    metrics = NodeMetrics()
    counted = metrics.track(rank.reader)
    done = threading.Event()

    def read() -> None:
        while (batch := rank.reader.poll(limit=50)).entered:
            counted.consume(batch, rank.reader.status(), 0)
        done.set()

    reader = threading.Thread(target=read)
    reader.start()
    seen = [0.0]
    while not done.is_set() or seen[-1] < 8_000:
        snapshot = metrics.snapshot()
        for _, entered in METRICS["torchdist_operations_total"].read(snapshot):
            (timed,) = snapshot.runs[RUN].timed.values()
            assert timed.durations.count == timed.durations.sum_s == entered
            seen.append(entered)
    reader.join()
    assert seen == sorted(seen)
    assert len(set(seen)) > 2
