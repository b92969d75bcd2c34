"""However large or odd a job is, its series are bounded."""

import copy
import dataclasses
from collections import Counter
from pathlib import Path

import pytest

from otel_torchdist.model.names import GroupName
from otel_torchdist.node.machine.reader import MachineReading
from otel_torchdist.tape.reading.batch import Batch
from otel_torchdist.telemetry.metrics.labels import MAX_GROUPS, MAX_OPERATIONS
from otel_torchdist.telemetry.metrics.node import NodeMetrics
from otel_torchdist.telemetry.metrics.snapshots import ArrivalCounts, VerdictStatus
from tests.support.tapes.fake_tape import RUN, RUN_ID, SECOND, WORLD, FakeTape
from tests.support.tapes.metrics_node import METRICS, Node, series_of

NODES, LOCAL_RANKS = 512, 8
BUDGET_OF_A_NODE, BUDGET_OF_THE_WORLD = 3_000, 1_500_000
BUDGET_OF_AN_EXPLOSION = 45_000
STALL = VerdictStatus(RUN_ID, WORLD.key, "all_reduce", "absent", (2, 0, 1), 0xABC, "4/4")


def groups(count: int) -> list[GroupName]:
    """Different groups of rank 0."""
    return [dataclasses.replace(WORLD, ranks=(0, other)) for other in range(1, count + 1)]


def simulate(rank: FakeTape, batch: Batch, first: int) -> NodeMetrics:
    """A node whose ranks, from `first` on, have all done what one simulated rank has."""
    gpus = {nonce: f"GPU-{nonce}" for nonce in range(first + 1, first + LOCAL_RANKS + 1)}
    machine = MachineReading("node-1", gpus)
    metrics = NodeMetrics(machine=lambda: machine)
    for number in range(first, first + LOCAL_RANKS):
        reader = copy.copy(rank.reader)
        reader.identity = dataclasses.replace(reader.identity, rank=number, nonce=number + 1)
        metrics.track(reader).consume(batch, rank.reader.status(), 0)
    return metrics


def test_groups_beyond_the_bound_are_folded(node: Node) -> None:
    """The first groups keep their series permanently; later ones are counted together, with their number."""
    most = MAX_GROUPS
    rank = node.add()
    for group in groups(most + 44):
        rank.run(group=group, sequence=3)
    for group in groups(most + 44):
        rank.run(group=group, sequence=4)
    node.poll()
    operations = node.values("torchdist_operations_total")
    assert len(operations) == most + 1
    assert operations[RUN, "0", "other", "all_reduce"] == 88
    assert set(operations.values()) == {2, 88}
    assert node.values("torchdist_groups_folded_total") == {(RUN, "0"): 44}
    assert len(node.values("torchdist_last_started_sequence")) == most
    assert set(node.values("torchdist_last_started_sequence").values()) == {4}


def test_operations_beyond_the_bound_are_folded(node: Node) -> None:
    """Names of operations are bounded too, in case a tape holds others than those of torch."""
    rank = node.add()
    for number in range(MAX_OPERATIONS + 10):
        rank.run(f"op{number}")
    node.poll()
    operations = node.values("torchdist_operations_total")
    assert len(operations) == MAX_OPERATIONS + 1
    assert operations[RUN, "0", WORLD.key, "other"] == 10


@pytest.mark.thorough
def test_series_of_4096_ranks_stay_in_the_budget(tmp_path: Path) -> None:
    """4,096 ranks on 512 nodes, each in 4 groups with 6 operations of two sizes, with steps, in flight, and a stall."""
    rank = FakeTape(tmp_path)
    for group in groups(4):
        for operation in ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "barrier", "all_to_all"):
            rank.run(operation, group)
            rank.run(operation, group, sequence=2, message_bytes=1 << 20)
            rank.begin(operation, group, sequence=3)
    rank.writer.step_ended(0, 0, 1)
    rank.writer.step_ended(1, SECOND, 1)
    batch = rank.reader.poll()
    world = 0
    for node in range(NODES):
        metrics = simulate(rank, batch, first=node * LOCAL_RANKS)
        metrics.set_stall(STALL)
        for group in groups(4):
            ranks = range(node * LOCAL_RANKS, (node + 1) * LOCAL_RANKS)
            last = Counter(dict.fromkeys(ranks, 8))
            metrics.add_arrivals(RUN_ID, group.key, ArrivalCounts(64, 0.2, last, dict.fromkeys(ranks, 0.1)))
        series = sum(1 for _ in series_of(metrics.snapshot()))
        assert 1_000 < series <= BUDGET_OF_A_NODE
        world += series
    assert world <= BUDGET_OF_THE_WORLD


@pytest.mark.thorough
def test_explosion_of_labels_stays_in_the_budget(tmp_path: Path) -> None:
    """With 10,000 groups and 40 operations a node keeps to its bounds, and still counts every operation."""
    rank = FakeTape(tmp_path, capacity=32_768)
    for number, group in enumerate(groups(10_000)):
        for operation in range(2):
            rank.run(f"op{(operation + number) % 40}", group)
    metrics = simulate(rank, rank.reader.poll(), first=0)
    snapshot = metrics.snapshot()
    assert sum(1 for _ in series_of(snapshot)) <= BUDGET_OF_AN_EXPLOSION
    assert sum(value for _, value in METRICS["torchdist_operations_total"].read(snapshot)) == 20_000 * LOCAL_RANKS
