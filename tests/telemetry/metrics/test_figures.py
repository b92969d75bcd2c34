"""What a rank counts itself, as series."""

from __future__ import annotations

import pytest

from otel_torchdist.tape.figures import FigureWord
from otel_torchdist.tape.layout import REFUGE_OFFSET, LiveWord
from tests.support.tapes.fake_tape import RUN
from tests.support.tapes.metrics_node import Node

FIGURES = (
    "torchdist_data_wait_seconds_total",
    "torchdist_batches_total",
    "torchdist_backward_seconds_total",
    "torchdist_optimizer_seconds_total",
    "torchdist_samples_total",
    "torchdist_tokens_total",
    "torchdist_flops_total",
    "torchdist_gradient_sync_seconds",
    "torchdist_gradient_sync_exposed_seconds",
)


def test_figures_have_words_of_their_own() -> None:
    """No figure shares a word of the header with the live words, nor with the records behind it."""
    assert not {*FigureWord} & {*LiveWord}
    assert max(FigureWord) < REFUGE_OFFSET // 8


def test_a_rank_that_counts_nothing_has_no_series(node: Node) -> None:
    """A job without loaders, backward passes and `mark_step` pays for none of these."""
    node.add().run()
    node.poll()
    assert [node.values(name) for name in FIGURES] == [{}] * len(FIGURES)


def test_figures_are_those_on_the_tape(node: Node) -> None:
    """Times in seconds, numbers as they are; of gradients also what their computation did not hide."""
    tape = node.add(rank=3).writer
    tape.replace_figures(FigureWord.DATA_WAIT_NS, 2_500_000_000, 7)
    tape.add_time(FigureWord.BACKWARD_NS, 1_500_000_000)
    tape.add_time(FigureWord.OPTIMIZER_NS, 250_000_000)
    tape.add_to(FigureWord.SAMPLES, 64)
    tape.add_to(FigureWord.TOKENS, 64 * 2048)
    tape.add_flops(1.5e24)
    tape.set_sync(40_000_000, 28_000_000)
    node.poll()
    expected = (2.5, 7, 1.5, 0.25, 64, 131_072, 1.5e24, 0.04, 0.012)
    assert [node.values(name) for name in FIGURES] == [{(RUN, "3"): pytest.approx(value)} for value in expected]


def test_figures_of_a_rank_that_has_ended_stay(node: Node) -> None:
    """What it had counted is still there after its end."""
    rank = node.add()
    rank.writer.add_to(FigureWord.SAMPLES, 5)
    node.poll()
    rank.writer.close()
    node.poll()
    assert node.values("torchdist_samples_total") == {(RUN, "0"): 5}
