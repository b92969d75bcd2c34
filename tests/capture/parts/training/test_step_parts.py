"""Amounts and expectations of a step, and parts of a step that are unknown.

The times of its parts are compared with those of a program that times itself in `tests/figures`.
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
    """Numbers are counted, also after an overflow of integers; anything else is left out with one warning per name."""
    job = jobs.run("steps", 1, "amounts")
    assert job.ranks[0].line() == {"samples": 8, "tokens": 4096, "flops": pytest.approx(2e25)}
    assert [line for line in job.ranks[0].err.splitlines() if "mark_step" in line] == [
        "mark_step(samples=-1): ignored, not a finite non-negative number",
        "mark_step(tokens=-2): ignored, not a finite non-negative number",
    ]
    assert len(job.tapes[0].steps) == 8


def test_damaged_figures(rank: Rank) -> None:
    """Words that are no number of floating-point operations count as none."""
    rank.reader.words[FigureWord.FLOPS] = 0x7FF8_0000_0000_0000
    assert rank.figures.flops == 0.0
    rank.reader.words[FigureWord.FLOPS] = 0xFFF0_0000_0000_0000
    assert rank.figures.flops == 0.0


def test_torch_without_what_ddp_begins_with(
    memory: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One line says what is not known, and the end of a step asks no model."""
    monkeypatch.delattr(DistributedDataParallel, "_ddp_init_helper")
    with contextlib.closing(Rank(memory)) as rank:
        timers = GradientSync()
        timers.hook(rank.patches)
        timers.step_ended(rank.recorder)
    assert caplog.messages == ["this torch has no DDP._ddp_init_helper: gradient sync is not timed"]


@pytest.fixture(scope="module")
def expecting(jobs: Jobs) -> Job:
    """A rank that records what it expects."""
    return jobs.run("expecting")


def test_the_longest_counts_and_ends_with_its_block(expecting: Job) -> None:
    """Nested, after an exception, without a block, with a new process group, and ended twice."""
    assert expecting.ranks[0].line()["seen"] == [0, 100, 100, 1000, 100, 0, 0, 200, 200, 0, 0]


def test_for_ever_is_very_long(expecting: Job) -> None:
    """An infinite expectation fits on the tape."""
    assert 9 < expecting.ranks[0].line()["endless_years"] < 11


def test_what_is_no_time_is_one_warning(expecting: Job) -> None:
    """A negative value or a non-number is refused with one warning that names it, and nothing is expected."""
    warnings = [line for line in expecting.ranks[0].err.splitlines() if "expect_wait" in line]
    assert warnings == [
        "expect_wait(-1): ignored, not a non-negative number of seconds",
        "expect_wait(nan): ignored, not a non-negative number of seconds",
    ]
