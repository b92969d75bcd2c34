"""Labels of the calls of parallelism libraries, in a job of four ranks."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest

from tests.support.launch.jobs import Jobs
from tests.support.native.both_kernels import NATIVE_LATER
from tests.support.tapes.recorded import Recorded, RecordedTape

pytestmark = NATIVE_LATER
RANKS = 4
PARTS = ("fsdp2", "fsdp1", "ddp", "pipelines", "meshes")
STEPS = 3
MICROBATCHES = 4


@dataclass(frozen=True)
class LabelledJob:
    """The recording of a job.

    Attributes:
        said: What rank 0 has said of itself.
        tapes: The tapes, by rank.
    """

    said: dict[str, Any]
    tapes: list[RecordedTape]

    def part(self, name: str, rank: int) -> list[Recorded]:
        """Return the calls of one rank in one part of the job."""
        parts: list[list[Recorded]] = []
        for operation in self.tapes[rank].operations:
            if operation.name == "barrier":
                parts.append([])
            else:
                parts[-1].append(operation)
        return parts[PARTS.index(name)]


@pytest.fixture(scope="module")
def job(jobs: Jobs) -> LabelledJob:
    """The job."""
    done = jobs.run("labelled", RANKS)
    lines = [json.loads(line) for line in done.ranks[0].out.splitlines() if line.startswith("{")]  # torch 2.8 says more
    return LabelledJob({key: value for line in lines for key, value in line.items()}, done.tapes)


def elements(operation: Recorded) -> int:
    """Return the number of elements of an operation's only tensor."""
    [shape] = operation.signature.shapes
    return int(shape[0])


@pytest.mark.parametrize("rank", range(RANKS))
@pytest.mark.parametrize(
    ("part", "shards", "calls"),
    [
        ("fsdp2", {"all_gather_into_tensor": 2, "reduce_scatter_tensor": 1, "all_reduce": 2}, STEPS * (7 + 4 + 4)),
        ("fsdp1", {"all_gather": RANKS, "reduce_scatter_tensor": 1}, 2 * STEPS * (7 + 4)),
    ],
)
def test_units(job: LabelledJob, rank: int, part: str, shards: dict[str, int], calls: int) -> None:
    """Each call of either FSDP has its unit, which the test knows by the number of elements.

    Also with explicit prefetching in both directions, and with flat and original parameters.
    """
    units = {size: f"FSDP {name}" for name, size in job.said["sizes"].items()}
    found = job.part(part, rank)
    assert [one.label for one in found] == [units[elements(one) * shards[one.name]] for one in found]
    assert len(found) == calls


@pytest.mark.parametrize("rank", range(RANKS))
def test_buckets(job: LabelledJob, rank: int) -> None:
    """Buckets of equal size get different numbers in every step, also after they were rebuilt.

    Other reductions get none.
    """
    sums = [one for one in job.part("ddp", rank) if one.name == "all_reduce"]
    own = [one for one in sums if not one.is_async]
    assert len(own) == 4 and {one.label for one in own} == {""}  # in backward, too, and as large as a bucket
    first, *rebuilt = [one.label for one in sums if one.is_async]
    in_order = [f"DDP bucket {number}" for number in range(3)]
    assert len(set(job.said["rebuilt"])) == 1
    assert (first, rebuilt) == ("DDP bucket 0", 4 * in_order)


@pytest.mark.parametrize("pair", [(0, 1), (2, 3)])
def test_stages_and_microbatches(job: LabelledJob, pair: tuple[int, int]) -> None:
    """Both ends of each message have their stage, and the same direction and microbatch, in three schedules."""
    sides: dict[tuple[str, int, int, int], Recorded] = {}
    for rank in pair:
        for one in job.part("pipelines", rank):
            if one.label:
                source, target = (rank, one.raw.peer) if one.name == "send" else (one.raw.peer, rank)
                sides[one.name, source, target, one.raw.sequence] = one
    sent = {key: one for key, one in sides.items() if one.name == "send"}
    assert len(sides) == 2 * len(sent)
    for (_, *place), one in sent.items():
        stage, direction, microbatch = one.label.removeprefix("pipeline stage ").split(", ")
        received = int(stage) + (1 if direction == "fwd" else -1)
        other = sides["recv", place[0], place[1], place[2]]
        assert other.label == f"pipeline stage {received}, {direction}, {microbatch}"
    messages = [(one.label, one.raw.step) for one in sent.values()]
    assert len(set(messages)) == len(messages), "no microbatch is sent twice in a step"
    per_step = Counter(step for _, step in messages)
    borders = [1, 1, 1, 1, 3, 3]  # between stages: two steps each of GPipe, 1F1B and interleaved 1F1B
    assert [per_step[step] for step in sorted(per_step)] == [2 * MICROBATCHES * count for count in borders]


def test_messages_of_tensors_alone_are_labelled(job: LabelledJob) -> None:
    """Every send and receive of activations has a label. Messages that negotiate shapes have none."""
    calls = [one for one in job.part("pipelines", 0) if one.name in ("send", "recv")]
    assert {bool(one.label) for one in calls if one.signature.shapes == ((2, 8),)} == {True}
    assert {bool(one.label) for one in calls if one.signature.shapes != ((2, 8),)} == {False}


@pytest.mark.parametrize("rank", range(RANKS))
def test_dimensions(job: LabelledJob, rank: int) -> None:
    """Groups have their dimensions' names: flattened dimensions, shared groups, and groups that the program passes."""
    found = [(one.group.description, one.group.dimensions) for one in job.part("meshes", rank)]
    world = ("default_pg", ("dp_fsdp", "world"))
    mesh = [("mesh_dp", ("dp", "outer")), ("mesh_fsdp", ("fsdp",)), ("mesh_tp", ("tp",))]
    assert found == [*mesh, world, world, ("", ("given", "inner")), mesh[0]]
