"""Durations of backward passes and the time that belongs to them. Gradients and errors are as without recording."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import torch

from otel_torchdist.model.kinds import ActivityKind, How
from tests.capture.parts.training.rank_here import Rank


def test_backward_passes(rank: Rank) -> None:
    """The method and the function are timed, the outermost of nested passes. A long pass is an activity."""
    weight = torch.ones(3, requires_grad=True)
    weight.sum().backward()
    torch.autograd.backward([weight.sum()])
    assert rank.figures.backward_passes == 2
    rank.ended(ActivityKind.BACKWARD)
    layer = torch.nn.Linear(3, 3)

    def forward(given: torch.Tensor) -> torch.Tensor:
        time.sleep(0.002)
        return layer(given)

    recomputed: Any = torch.utils.checkpoint.checkpoint(forward, weight, use_reentrant=True)  # type: ignore[attr-defined]
    recomputed.sum().backward()
    assert rank.figures.backward_passes == 3
    [found] = rank.ended(ActivityKind.BACKWARD)
    assert found.how is How.CALL
    assert rank.figures.backward_ns >= (found.completed_ns or 0) - found.entered_ns >= 2_000_000


def test_what_a_backward_pass_raises_passes_unchanged(rank: Rank) -> None:
    """A hook's error, and torch's own without a graph, pass unchanged. The activity has failed."""
    weight = torch.ones(3, requires_grad=True)
    raised = ZeroDivisionError("in a hook")

    def hook(gradient: torch.Tensor) -> None:
        raise raised

    weight.register_hook(hook)
    with pytest.raises(ZeroDivisionError) as caught:
        weight.sum().backward()
    assert caught.value is raised
    [found] = rank.ended(ActivityKind.BACKWARD)
    assert (found.how, rank.reader.names.text(found.failure)) == (How.FAILED, "ZeroDivisionError")
    with pytest.raises(RuntimeError, match="does not require grad"):
        torch.ones(3).sum().backward()
    assert rank.reader.open_activities() == []


def test_gradients_are_those_without_us(rank: Rank) -> None:
    """Gradients are bitwise equal to those without recording, with all kinds of arguments."""

    def gradients() -> list[list[float]]:
        torch.manual_seed(1)
        weight = torch.randn(8, requires_grad=True)
        other = torch.randn(8, requires_grad=True)
        (weight * other).sin().backward(torch.ones(8), retain_graph=True, inputs=[weight])
        torch.autograd.backward(((weight * other).cos(),), grad_tensors=(torch.ones(8),), create_graph=False)
        assert weight.grad is not None
        assert other.grad is not None
        return [weight.grad.tolist(), other.grad.tolist()]

    ours = gradients()
    rank.patches.restore()
    assert gradients() == ours
    assert torch.autograd.backward.__module__ == "torch.autograd"


def test_optimizers_in_backward_hooks_are_part_of_it(rank: Rank) -> None:
    """An optimizer step in a backward hook counts as backward time. Later steps count as optimizer time."""
    weight = torch.nn.Parameter(torch.ones(3))
    one = torch.optim.SGD([weight], lr=0.1)
    weight.register_post_accumulate_grad_hook(lambda _: one.step())
    weight.sum().backward()
    assert rank.figures.optimizer_steps == 0
    one.step()
    assert rank.figures.optimizer_steps == 1
    assert rank.figures.optimizer_ns > 0


def test_backward_pass_that_runs(rank: Rank) -> None:
    """During a pass the tape has its start and thread. A nested pass or an error does not remove them."""
    seen: list[tuple[int, int]] = []
    before_ns = time.monotonic_ns()

    def look() -> None:
        status = rank.reader.status()
        seen.append((status.backward_thread, status.backward_since_ns))

    weight = torch.ones(3, requires_grad=True)

    def hook(gradient: torch.Tensor) -> None:
        look()
        with torch.enable_grad():
            torch.ones(1, requires_grad=True).sum().backward()
        look()

    weight.register_hook(hook)
    weight.sum().backward()
    look()
    (thread, since_ns), again, after = seen
    assert thread == threading.get_native_id()
    assert before_ns - 1_000 <= since_ns <= time.monotonic_ns()
    assert again == (thread, since_ns)
    assert after == (thread, 0)
    with pytest.raises(RuntimeError, match="does not require grad"):
        torch.ones(3).sum().backward()
    assert rank.reader.status().backward_since_ns == 0


def test_backward_pass_of_another_thread(rank: Rank) -> None:
    """The newest pass is on the tape. The end of an older pass on another thread does not remove it."""
    weight = torch.ones(3, requires_grad=True)
    begun, over = threading.Event(), threading.Event()

    def wait(gradient: torch.Tensor) -> None:
        begun.set()
        over.wait(30)

    weight.register_hook(wait)
    tape = rank.recorder.tape
    tape.begin_backward(1, 1_000)
    other = threading.Thread(target=weight.sum().backward)
    other.start()
    begun.wait(30)
    tape.end_backward(1)
    status = rank.reader.status()
    over.set()
    other.join()
    assert (status.backward_thread, status.backward_since_ns > 1_000) == (other.native_id, True)
    assert rank.reader.status().backward_since_ns == 0
