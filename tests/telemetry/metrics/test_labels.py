"""Labels of runs and groups in a process that reads many jobs: none shared by two, and none used up permanently."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from otel_torchdist.model.kinds import RunIdState
from otel_torchdist.telemetry.metrics.labels import MAX_GROUPS, RunIdentity, RunLabels
from otel_torchdist.telemetry.metrics.node import NodeMetrics
from otel_torchdist.telemetry.metrics.snapshots import VerdictStatus
from tests.support.tapes.fake_tape import RUN, RUN_ID, WORLD, FakeTape
from tests.support.tapes.metrics_node import METRICS

STRANGER = 12345
SAME_DIGITS = RUN_ID ^ 1


def track(metrics: NodeMetrics, rank: FakeTape) -> None:
    """Read all that a rank has written."""
    metrics.track(rank.reader).consume(rank.reader.poll(), rank.reader.status(), 0)


def ranks_of(metrics: NodeMetrics) -> set[tuple[str, ...]]:
    """Run and rank of each rank that is shown."""
    return {labels for labels, _ in METRICS["torchdist_up"].read(metrics.snapshot())}


def test_same_digits(tmp_path: Path) -> None:
    """The eight digits are on every page, and can be forged: the forger's rank does not replace the other."""
    metrics = NodeMetrics()
    victim, forger, copier = (
        FakeTape(tmp_path, 0, run_id=RUN_ID),
        FakeTape(tmp_path, 0, run_id=SAME_DIGITS),
        FakeTape(tmp_path, 0, run_id=RUN_ID),
    )
    copier.reader.owner = STRANGER
    victim.run(sequence=7)
    for rank in (victim, forger, copier):
        track(metrics, rank)
    assert ranks_of(metrics) == {(RUN, "0"), (f"{RUN}-2", "0"), (f"{RUN}-3", "0")}
    started = dict(METRICS["torchdist_last_started_sequence"].read(metrics.snapshot()))
    assert started[RUN, "0", WORLD.key] == 7
    metrics.set_stall(VerdictStatus(RUN_ID, WORLD.key, "all_reduce", "absent", (0,), 1, "1/1"))
    metrics.set_stall(VerdictStatus(SAME_DIGITS, WORLD.key, "all_reduce", "dead", (0,), 2, "1/1"))
    stalls = {run: snapshot.stall.verdict for run, snapshot in metrics.snapshot().runs.items() if snapshot.stall}
    assert stalls == {RUN: "absent", f"{RUN}-2": "dead"}
    metrics.clear_stall(SAME_DIGITS)
    assert metrics.snapshot().runs[RUN].stall is not None


def test_ranks_without_a_run(tmp_path: Path) -> None:
    """Ranks 0 of two jobs that do not know their runs are two ranks."""
    metrics = NodeMetrics()
    for directory in ("a", "b"):
        (tmp_path / directory).mkdir()
        rank = FakeTape(tmp_path / directory, 0, run_id=0, state=RunIdState.UNAGREED)
        track(metrics, rank)
    assert ranks_of(metrics) == {("", "0"), ("unnamed-2", "0")}


def test_labels_are_given_back() -> None:
    """The label of a run that is gone is free again; one that stays keeps its own."""
    labels = RunLabels()
    first, second = RunIdentity(RUN_ID, 1), RunIdentity(SAME_DIGITS, 2)
    assert (labels.of(first), labels.of(second), labels.of(first)) == (RUN, f"{RUN}-2", RUN)
    assert labels.of_run(SAME_DIGITS) == f"{RUN}-2"
    labels.keep({f"{RUN}-2"})
    assert labels.of(second) == f"{RUN}-2"
    assert labels.of(RunIdentity(RUN_ID ^ 2, 3)) == RUN


def test_groups_of_one_job_cost_another_nothing(tmp_path: Path) -> None:
    """A job with more groups than labels, or months of jobs one after the other, leave the next job its own."""
    metrics = NodeMetrics()
    for directory in ("greedy", "modest"):
        (tmp_path / directory).mkdir()
    greedy = FakeTape(tmp_path / "greedy", 0, run_id=1 << 120)
    for other in range(1, MAX_GROUPS + 44):
        greedy.run(group=dataclasses.replace(WORLD, ranks=(0, 1000 + other)))
    track(metrics, greedy)
    modest = FakeTape(tmp_path / "modest", 0)
    modest.run(sequence=3)
    track(metrics, modest)
    assert dict(METRICS["torchdist_last_started_sequence"].read(metrics.snapshot()))[RUN, "0", WORLD.key] == 3
    metrics.set_stall(VerdictStatus(RUN_ID, WORLD.key, "all_reduce", "absent", (0,), 1, "1/1"))
    stall = metrics.snapshot().runs[RUN].stall
    assert stall is not None and stall.group == WORLD.key
    for job in range(MAX_GROUPS + 10):
        rank = FakeTape(tmp_path / "modest", 1, run_id=(job + 2) << 100)
        rank.run(group=dataclasses.replace(WORLD, ranks=(1, 5000 + job)))
        track(metrics, rank)
        metrics.forget(rank.reader.identity.nonce)
    metrics.clear_stall(RUN_ID)
    metrics.forget(modest.reader.identity.nonce)
    late = FakeTape(tmp_path / "modest", 0)
    late.run(group=dataclasses.replace(WORLD, ranks=(0, 9999)), sequence=5)
    track(metrics, late)
    assert 5 in dict(METRICS["torchdist_last_started_sequence"].read(metrics.snapshot())).values()
