"""`analyze --only path` on a real job of four ranks, one of which is late before one line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.gloo_jobs import GlooJobs
from tests.support.commands.asking import Answer, analyze

WORKER = Path(__file__).parent / "workers" / "delayed.py"
LINE = next(number for number, line in enumerate(WORKER.read_text().splitlines(), 1) if "the late call" in line)
DELAY_NS = 80_000_000


@pytest.fixture(scope="module")
def ended(gloo_by_kernel: Callable[..., GlooJobs]) -> Path:
    """The base directory of a job that has ended."""
    job = gloo_by_kernel("is delayed", worker=WORKER)
    assert [done.code for done in job.join()] == [0] * 4
    return job.base


def critical_path(base: Path, *arguments: str | Path) -> Answer:
    """Run the command."""
    return analyze(base, *arguments, only="path")


@pytest.mark.process
def test_the_delay_is_the_greatest_cause(ended: Path) -> None:
    """The late rank and its line are named with what a step would gain, and the path is mostly on that rank."""
    answer = critical_path(ended, "--json").document
    document, source = answer["path"], answer["source"]
    assert (source["world_size"], source["unknown_ranks"]) == (4, [])
    assert source == analyze(ended, "--json", only="graph").document["source"]
    assert source == analyze(ended, "--json", only="calls").document["source"]
    assert (document["notes"], answer["warnings"]) == ([], [])
    assert (document["steps"]["last"], document["steps"]["count"] > 6) == (13, True)
    cause = next(one for one in document["causes"] if one["kind"] == "line")
    assert (cause["ranks"], cause["call"]["line"], cause["call"]["operation"]) == ([2], LINE, "all_reduce")
    assert 0.7 * DELAY_NS < cause["gain_ns"] < 1.3 * DELAY_NS
    lengths = {one["rank"]: one["on_path_ns"] for one in document["ranks"]}
    assert lengths[2] > DELAY_NS > sum(lengths.values()) - lengths[2]
    waited = {one["rank"]: dict((wait["rank"], wait["ns"]) for wait in one["waits_for"]) for one in document["ranks"]}
    assert all(waited[rank][2] > 0.7 * DELAY_NS for rank in (0, 1, 3))


@pytest.mark.process
def test_what_people_read(ended: Path) -> None:
    """The text has the steps, the cause in a sentence, the pieces of the path and the time of each rank."""
    answer = critical_path(ended)
    assert (answer.code, answer.err) == (0, "")
    assert answer.has(
        r"\d+ steady steps, \d+ to 13: .* at the median; on the critical path \d+% computing, \d+% transfer"
    )
    call = rf"all_reduce in default_pg at <module> \(delayed.py:{LINE}\)"
    assert answer.has(
        rf" +[\d.]+ ms +\d+%  without this: rank 2 computes [\d.]+ ms longer than its peers before {call}"
    )
    assert answer.has(rf" +[\d.]+ ms +\d+%  rank 2, computing before {call}")
    assert answer.has(r" +3 .* rank 2, [\d.]+ ms")
