"""A program that gives messages tags of their own takes bounded memory, and no number means anything false."""

from __future__ import annotations

import pytest

from tests.support.launch.jobs import Job, Jobs
from tests.support.native.native_library import KERNELS
from tests.support.tapes.recorded import Recorded

MOST, UNUSED, AT_ONCE, STEADY, TIMES = 128, 64, 16, 10_000_000, 1_000
"""As in the program."""


@pytest.fixture(scope="module")
def many_tags(jobs_of: dict[str, Jobs]) -> dict[str, Job]:
    """The program, recorded by each kernel."""
    return {kernel: jobs.run("many_tags") for kernel, jobs in jobs_of.items()}


def of_tag(job: Job, tag: int, name: str = "send") -> list[Recorded]:
    """Return the records of messages with a tag."""
    return [one for one in job.tapes[0].operations if one.raw.tag == tag and one.name == name]


@pytest.mark.parametrize("kernel", KERNELS)
def test_memory_is_bounded(many_tags: dict[str, Job], kernel: str) -> None:
    """Counters are kept up to a bound, and the library's are used again."""
    (seen,) = many_tags[kernel].ranks[0].lines()
    assert MOST - AT_ONCE <= seen["kept"] <= MOST
    assert seen["seen"] + seen["anew"] < MOST
    assert seen["made"] <= (MOST + UNUSED + AT_ONCE if kernel == "native" else 0)


@pytest.mark.parametrize("kernel", KERNELS)
def test_tags_in_use(many_tags: dict[str, Job], kernel: str) -> None:
    """A tag that is used all the time is counted on without a gap, in both directions."""
    for name, extra in (("send", 3), ("recv", 0)):
        calls = of_tag(many_tags[kernel], STEADY, name)
        assert [one.raw.sequence for one in calls] == list(range(1, TIMES // 2 + extra + 1))
        assert all(one.group.aligned for one in calls)


@pytest.mark.parametrize("kernel", KERNELS)
def test_tags_that_grow(many_tags: dict[str, Job], kernel: str) -> None:
    """A tag above all that were forgotten has never been used, so its messages can be compared."""
    for tag in (*range(6, TIMES - 1), *range(TIMES, 2 * TIMES)):
        (call,) = of_tag(many_tags[kernel], tag)
        assert (call.raw.sequence, call.group.aligned) == (1, True)


@pytest.mark.parametrize("kernel", KERNELS)
def test_tags_that_come_again(many_tags: dict[str, Job], kernel: str) -> None:
    """The number of a message whose counter was forgotten is not comparable; that of a known counter goes on."""
    forgotten = [(one.raw.sequence, one.group.aligned) for one in of_tag(many_tags[kernel], 5)]
    assert forgotten == [(1, True), (1, False), (2, False), (3, False)]
    known = [(one.raw.sequence, one.group.aligned) for one in of_tag(many_tags[kernel], TIMES - 1)]
    assert known == [(1, True), (2, True), (3, True), (4, True)]
    assert len({one.group.key for one in many_tags[kernel].tapes[0].operations}) == 1
