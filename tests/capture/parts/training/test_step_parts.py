"""Amounts of work, expected waits, and missing private functions of torch.

For the times of a step's parts see `tests/figures`, which compare them with a program that times itself.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from torch.nn.parallel import DistributedDataParallel

from otel_torchdist.capture.parts.ddp import GradientSync
from otel_torchdist.tape.figures import FigureWord
from tests.capture.parts.training.rank_here import Rank
from tests.support.launch.jobs import Job, Jobs


def test_amounts_given_to_mark_step(jobs: Jobs) -> None:
    """Numbers are counted, also beyond 64 bits. Anything else is ignored with one warning per name."""
    job = jobs.run("steps", 1, "amounts")
    assert job.ranks[0].line() == {"samples": 8, "tokens": 4096, "flops": pytest.approx(2e25)}
    assert [line for line in job.ranks[0].err.splitlines() if "mark_step" in line] == [
        "mark_step(samples=-1): ignored, not a finite non-negative number",
        "mark_step(tokens=-2): ignored, not a finite non-negative number",
    ]
    assert len(job.tapes[0].steps) == 8


def test_damaged_figures(rank: Rank) -> None:
    """Words that hold no valid number of floating-point operations count as none."""
    rank.reader.words[FigureWord.FLOPS] = 0x7FF8_0000_0000_0000
    assert rank.figures.flops == 0.0
    rank.reader.words[FigureWord.FLOPS] = 0xFFF0_0000_0000_0000
    assert rank.figures.flops == 0.0


def test_torch_without_what_ddp_begins_with(
    memory: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Without DDP's private initializer there is one warning, and no model is asked at the end of a step."""
    monkeypatch.delattr(DistributedDataParallel, "_ddp_init_helper")
    with contextlib.closing(Rank(memory)) as rank:
        timers = GradientSync()
        timers.hook(rank.patches)
        timers.step_ended(rank.recorder)
    symbol = "torch.nn.parallel.distributed.DistributedDataParallel._ddp_init_helper"
    assert caplog.messages == [f"this torch has no {symbol}: gradient sync is not timed"]


@pytest.fixture(scope="module")
def expecting(jobs: Jobs) -> Job:
    """A rank that records expected waits."""
    return jobs.run("expecting")


def test_the_longest_counts_and_ends_with_its_block(expecting: Job) -> None:
    """The longest expectation counts: nested, after an exception, without a block, with a new group, ended twice."""
    assert expecting.ranks[0].line()["seen"] == [0, 100, 100, 1000, 100, 0, 0, 200, 200, 0, 0]


def test_for_ever_is_very_long(expecting: Job) -> None:
    """An infinite expectation fits on the tape."""
    assert 9 < expecting.ranks[0].line()["endless_years"] < 11


def test_what_is_no_time_is_one_warning(expecting: Job) -> None:
    """A negative or non-numeric duration is ignored with one warning."""
    warnings = [line for line in expecting.ranks[0].err.splitlines() if "expect_wait" in line]
    assert warnings == [
        "expect_wait(-1): ignored, not a non-negative number of seconds",
        "expect_wait(nan): ignored, not a non-negative number of seconds",
    ]
