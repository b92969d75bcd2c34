"""Advice on jobs in simulated time: given only if a measurement supports it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from otel_torchdist.analysis.advice import PAGES, Advice, Topic, advise, check, finding
from otel_torchdist.analysis.critical_path.analysis import critical_path_of
from otel_torchdist.analysis.parallelism.calls import calls_of
from otel_torchdist.analysis.parallelism.graph import graph_of
from tests.analysis.critical_path.simulated import MS, Job, site
from tests.support.repository import REPOSITORY

STEPS = 12
HOSTS = ("a", "a", "b", "b", "c", "c")


def advice_for(job: Job) -> list[Advice]:
    """Return the advice on a job."""
    histories = job.histories()
    calls = calls_of(histories)
    return advise(graph_of(calls), calls, critical_path_of(histories))


def job_of(step: Callable[[Job], None], ranks: int = 4, hosts: Sequence[str] = ()) -> Job:
    """Return a job with equal steps."""
    job = Job(ranks, hosts)
    for _ in range(STEPS):
        step(job)
        job.end_step()
    return job


def with_late(late: dict[int, float], ms: float = 0.1) -> Callable[[Job], None]:
    """Return a step in which ranks compute for 10 ms, some longer, and then meet."""

    def step(job: Job) -> None:
        for rank in range(len(job.now)):
            job.compute(rank, 10 + late.get(rank, 0))
        job.collective(20, ms=ms)

    return step


def test_nothing_stands_out() -> None:
    """There is no advice on a balanced job that hardly communicates."""
    assert advice_for(job_of(with_late({}))) == []


def test_a_slow_rank() -> None:
    """A rank that is nearly all of the path is pointed out, with its line and the gain."""
    [advice] = advice_for(job_of(with_late({2: 5})))
    assert (advice.topic, advice.ranks, advice.gain_ns) == (Topic.SLOW_RANK, (2,), 5 * MS)
    assert advice.label is not None
    assert advice.label.site == site(20)
    assert finding(advice, {advice.label.group: "mesh"}) == (
        "the computing of rank 2 is 99% of the critical path; if it took as long as its peers before all_reduce in "
        "mesh at train (train.py:20), a step would be up to 5.00 ms shorter"
    )


def test_a_slow_node_instead_of_its_ranks() -> None:
    """If most ranks of a node are slow, the node is pointed out instead of each rank."""
    [advice] = advice_for(job_of(with_late({2: 5, 3: 5}), 6, HOSTS))
    assert (advice.topic, advice.host, advice.ranks, advice.gain_ns) == (Topic.SLOW_NODE, "b", (2, 3), 5 * MS)


def test_exposed_communication() -> None:
    """Transfers of a third of the step are pointed out with their call, transfers of a tenth are not."""
    [advice] = advice_for(job_of(with_late({}, ms=5)))
    assert (advice.topic, advice.gain_ns, round(advice.share, 3)) == (Topic.EXPOSED, 5 * MS, 0.333)
    assert advice_for(job_of(with_late({}, ms=1))) == []


def test_unequal_stages() -> None:
    """A pipeline's slow stage is pointed out if it is slow on both replicas."""

    def step(job: Job) -> None:
        for _ in range(3):
            for first in (0, 2):
                job.compute(first, 2)
                job.collective(20, (first,), ms=0.01)
                job.message(10, first, first + 1)
                job.compute(first + 1, 6)
                job.collective(20, (first + 1,), ms=0.01)
        job.collective(30, (0, 2))
        job.collective(30, (1, 3))

    [advice] = [advice for advice in advice_for(job_of(step)) if advice.topic is not Topic.EXPOSED]
    assert (advice.topic, advice.ranks) == (Topic.UNEQUAL_STAGES, (1, 3))
    assert advice.gain_ns == pytest.approx(12 * MS, rel=0.1)


def test_tensor_parallelism_across_nodes() -> None:
    """Groups that reduce activations across two nodes are pointed out, with the bytes sent in a step."""

    def step(job: Job, groups: Sequence[tuple[int, int]]) -> None:
        for members in groups:
            for line in (20, 21):
                job.collective(line, members, ms=0.0001, shape=(256, 512))
        for rank in range(4):
            job.compute(rank, 10)

    hosts = ("a", "a", "b", "b")
    [advice] = advice_for(job_of(lambda job: step(job, [(0, 2), (1, 3)]), 4, hosts))
    assert (advice.topic, advice.role, advice.groups) == (Topic.ACROSS_NODES, "TP", 2)
    assert advice.step_bytes == 2 * 2 * 2 * 256 * 512 * 4
    assert advice_for(job_of(lambda job: step(job, [(0, 1), (2, 3)]), 4, hosts)) == []


@pytest.mark.parametrize(
    ("operations", "elements", "topics"), [(60, 1000, [Topic.SMALL]), (60, 10**6, []), (40, 1000, [])]
)
def test_many_small_operations(operations: int, elements: int, topics: list[Topic]) -> None:
    """More than 50 all_reduces of less than 1 MB in a step are pointed out; fewer or larger ones are not."""

    def step(job: Job) -> None:
        for line in range(operations):
            job.collective(20 + line, ms=0.0001, shape=(elements,))
        for rank in range(4):
            job.compute(rank, 10)

    found = advice_for(job_of(step))
    assert [advice.topic for advice in found] == topics
    assert all((advice.step_operations, advice.operation_bytes) == (60, 6000) for advice in found)


@pytest.mark.parametrize("topic", Topic)
def test_every_topic_has_its_place_in_the_documentation(topic: Topic) -> None:
    """Each topic has a way to check it, and a section in the documentation page that it refers to."""
    page, _, anchor = PAGES[topic].partition("#")
    headings = [line[3:] for line in (REPOSITORY / page).read_text().splitlines() if line.startswith("## ")]
    assert anchor in [heading.lower().replace(" ", "-") for heading in headings]
    assert check(Advice(topic))
