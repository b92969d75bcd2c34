"""Symptoms of a machine in a verdict: at most one clause, the strongest recent symptom that can explain it."""

from __future__ import annotations

import dataclasses
import signal

import pytest

from otel_torchdist.judge.stall.reporting.attributes import of_verdict
from otel_torchdist.judge.verdict.root_cause import RootFinder
from otel_torchdist.judge.verdict.verdict import Verdict, locate
from otel_torchdist.judge.verdict.wording.machine import describe_machine, describe_slow
from otel_torchdist.judge.verdict.wording.sentence import describe_verdict
from otel_torchdist.model.rank_state.symptoms import Symptom, SymptomKind
from otel_torchdist.model.reports.verdict_kinds import VerdictKind
from otel_torchdist.model.snapshot import WorldSnapshot
from otel_torchdist.telemetry import semconv
from tests.support.worlds.detectors import stalled
from tests.support.worlds.fake_world import SECOND, START_NS, THRESHOLD_NS, FakeWorld
from tests.support.worlds.judging import EVERYBODY, located_verdict

SINCE_S = 5.0
XID = SymptomKind.XID


def seen(kind: SymptomKind, at_s: float, value: float = 0.0, detail: str = "") -> Symptom:
    """Build a symptom."""
    return Symptom(kind, START_NS + round(at_s * SECOND), value, detail)


def with_symptoms(world: WorldSnapshot, symptoms: dict[int, tuple[Symptom, ...]]) -> WorldSnapshot:
    """Add symptoms to the machines of some ranks of a snapshot."""
    views = {rank: dataclasses.replace(view, symptoms=symptoms.get(rank, ())) for rank, view in world.ranks.items()}
    return dataclasses.replace(world, ranks=views)


def absent(*symptoms: Symptom, rank: int = 2) -> Verdict:
    """Let rank 2 be missing in an all_reduce in which the others have waited since `SINCE_S`."""
    world, _ = stalled(late=2, since_s=SINCE_S)
    return located_verdict(with_symptoms(world.snapshot(16.0), {rank: symptoms}))


@pytest.mark.parametrize(
    ("symptom", "clause"),
    [
        (seen(XID, 3.0, 79), "its GPU reported Xid 79 (it has fallen off the bus) 2.0 s before the wait began"),
        (seen(XID, 8.1, 999), "its GPU reported Xid 999 3.1 s after the wait began"),
        (seen(SymptomKind.GPU_LOST, 15.0), "its GPU is lost: the driver does not reach it"),
        (
            seen(SymptomKind.ECC, 4.0, 1),
            "its GPU has had a memory error that was not corrected, 1.0 s before the wait began",
        ),
        (
            seen(SymptomKind.ECC, 4.0, 3),
            "its GPU has had 3 memory errors that were not corrected, 1.0 s before the wait began",
        ),
        (seen(SymptomKind.NODE_MEMORY, 15.0, 0.63), "its node was short of memory (PSI full 63%)"),
        (seen(SymptomKind.CGROUP_MEMORY, 15.0, 0.4), "its cgroup was short of memory (PSI full 40%)"),
        (seen(SymptomKind.STORAGE, 15.0, 0.72), "its node waited for storage (PSI full 72%)"),
    ],
)
def test_clause_of_an_absent_rank(symptom: Symptom, clause: str) -> None:
    """Each kind of symptom has its clause, in the second sentence."""
    verdict = absent(symptom)
    assert describe_verdict(verdict, 11.0) == (
        f"rank 2 has not entered all_reduce (sequence 2, default_pg) for 11.0 s; "
        "it was last in all_reduce, called in train at train.py:42; 3 of 4 ranks wait in train at train.py:42. "
        f"{clause[0].upper()}{clause[1:]}"
    )
    assert of_verdict(verdict, 1, 11.0)[semconv.MACHINE_EVIDENCE] == symptom.kind.value


@pytest.mark.parametrize(
    "symptom",
    [
        seen(XID, SINCE_S - 61.0, 79),
        seen(SymptomKind.NODE_MEMORY, SINCE_S - 11.0, 0.9),
        seen(SymptomKind.THROTTLED, 15.0, detail="hardware_thermal"),
        seen(SymptomKind.LINK_DOWN, 4.0, detail="mlx5_0/1"),
    ],
)
def test_what_is_not_said(symptom: Symptom) -> None:
    """Old symptoms, and kinds that cannot delay an absent rank, are left out."""
    verdict = absent(symptom)
    assert describe_machine(verdict) == []
    assert semconv.MACHINE_EVIDENCE not in of_verdict(verdict, 1, 11.0)


def test_machine_of_another_rank() -> None:
    """A symptom of a waiting rank's machine explains nothing."""
    assert describe_machine(absent(seen(XID, 4.0, 79), rank=1)) == []


def test_one_clause() -> None:
    """Of several symptoms, the strongest is stated."""
    memory, error = seen(SymptomKind.NODE_MEMORY, 15.0, 0.9), seen(XID, 4.0, 79)
    [clause] = describe_machine(absent(memory, error))
    assert clause.startswith("its GPU reported Xid 79")


def test_hostile_symptoms() -> None:
    """Hostile details from another agent become printable text."""
    values = (float("nan"), float("inf"), -1e300)
    clauses = [
        describe_machine(absent(seen(kind, 15.0, value, "\x1b[2J" * 99))) for kind in SymptomKind for value in values
    ]
    assert all(clause.isprintable() and len(clause) < 500 for [clause] in filter(None, clauses))


def test_all_have_entered() -> None:
    """If no rank is named, a broken GPU or link of any member is stated."""
    world = FakeWorld(4)
    for rank in range(4):
        world.ranks[rank].enter(EVERYBODY, SINCE_S)
    for symptom, clause in (
        (seen(XID, 4.0, 74), "rank 1's GPU reported Xid 74 (NVLink error) 1.0 s before the wait began"),
        (
            seen(SymptomKind.LINK_DOWN, 4.0, detail="mlx5_0/1"),
            "rank 1's node's link mlx5_0/1 went down 1.0 s before the wait began",
        ),
    ):
        verdict = located_verdict(with_symptoms(world.snapshot(16.0), {1: (symptom,)}))
        assert verdict.kind is VerdictKind.TRANSPORT
        assert describe_machine(verdict) == [clause]


def test_before_a_death() -> None:
    """The time of a GPU error is relative to the death. An out-of-memory kill is not repeated as a symptom."""
    for oom, expected in (
        ("", ["its GPU reported Xid 79 (it has fallen off the bus) 2.0 s before it ended"]),
        ("cgroup", []),
    ):
        world, _ = stalled(late=-1, since_s=SINCE_S)
        world.ranks[2].is_seen_to_die(7.0, int(signal.SIGKILL), oom=oom)
        symptoms = (seen(SymptomKind.NODE_MEMORY, 6.0, 0.9), *(() if oom else (seen(XID, 5.0, 79),)))
        snapshot = with_symptoms(world.snapshot(9.0), {2: symptoms})
        verdict = RootFinder(THRESHOLD_NS).find(snapshot, [], None)
        assert verdict is not None
        assert describe_machine(locate(snapshot, verdict)) == expected


def test_slow_rank() -> None:
    """Throttled clocks explain a slow rank; an old error does not."""
    now_ns = START_NS + 100 * SECOND
    throttled = seen(SymptomKind.THROTTLED, 98.0, detail="hardware_thermal")
    assert (
        describe_slow([seen(XID, 98.0, 79), throttled], now_ns) == "; its GPU's clocks are held down (hardware_thermal)"
    )
    assert describe_slow([seen(SymptomKind.THROTTLED, 80.0)], now_ns) == ""
