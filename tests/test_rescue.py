"""What the module `rescue` copies, refuses, writes and finds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from otel_torchdist import StalledRank, rescue

Made = tuple[torch.nn.Module, torch.optim.Optimizer, rescue.LocalShards]
MakeOptimizer = Callable[[Iterator[torch.nn.Parameter]], torch.optim.Optimizer]


def adam(parameters: Iterator[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """As most programs have it."""
    return torch.optim.AdamW(parameters, lr=0.1)


def trained(seed: int, steps: int, width: int = 4, make: MakeOptimizer = adam) -> Made:
    """A model, its optimizer and its shards after some steps."""
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.BatchNorm1d(width))
    optimizer = make(model.parameters())
    shards = rescue.LocalShards(model, optimizer)
    train(model, optimizer, range(steps))
    return model, optimizer, shards


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
    """Train some steps, each on a batch of its own."""
    width = next(model.parameters()).shape[-1]
    for step in steps:
        optimizer.zero_grad()
        model(torch.randn(8, width, generator=torch.Generator().manual_seed(step))).square().sum().backward()
        optimizer.step()


def stalled(rank: int, step: int, directory: Path) -> StalledRank:
    """A rank of two."""
    return StalledRank(
        rank=rank, world_size=2, step=step, run="", verdict="", ranks="", text="", timeout=1.0, directory=directory
    )


def test_copy_goes_on_as_the_original(tmp_path: Path) -> None:
    """A copy that was written, read without unpickling code, and put into a new model trains to the same bits."""
    model, optimizer, shards = trained(seed=1, steps=5)
    path = rescue.save(shards.copy(), stalled(0, 5, tmp_path))
    other, others_optimizer, others_shards = trained(seed=2, steps=0)
    others_shards.load(torch.load(path, weights_only=True))
    assert (shards.steps, others_shards.steps) == (5, 5)
    for one, its_optimizer in ((model, optimizer), (other, others_optimizer)):
        train(one, its_optimizer, range(5, 9))
    assert others_shards.steps == 9
    for name, value in model.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name


def with_tensors(parameters: Iterator[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """Its learning rate and momentum are tensors, as programs have them that capture or compile the step."""
    betas: Any = torch.tensor(0.9), torch.tensor(0.999)
    return torch.optim.AdamW(parameters, lr=torch.tensor(0.1), betas=betas, foreach=False)


def fused(parameters: Iterator[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """Its count of steps is where the parameter is."""
    return torch.optim.AdamW(parameters, lr=torch.tensor(0.1), fused=True)


@pytest.mark.parametrize("make", [with_tensors, fused])
def test_hyperparameters_that_are_tensors(make: MakeOptimizer, tmp_path: Path) -> None:
    """They are copied, not referred to, and put back into the same tensors, which a scheduler changes afterwards."""
    model, optimizer, shards = trained(seed=1, steps=3, make=make)
    optimizer.param_groups[0]["lr"].fill_(0.02)
    path = rescue.save(shards.copy(), stalled(0, 3, tmp_path))
    optimizer.param_groups[0]["lr"].fill_(0.01)
    other, others_optimizer, others_shards = trained(seed=2, steps=0, make=make)
    rate: torch.Tensor = others_optimizer.param_groups[0]["lr"]
    others_shards.load(torch.load(path, weights_only=True))
    assert others_optimizer.param_groups[0]["lr"] is rate
    assert rate.item() == pytest.approx(0.02)
    rate.fill_(0.01)
    for one, its_optimizer in ((model, optimizer), (other, others_optimizer)):
        train(one, its_optimizer, range(3, 6))
    assert all(torch.equal(value, other.state_dict()[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize(("make", "device"), [(adam, "cpu"), (fused, "meta")])
def test_counts_of_steps_are_where_they_were(make: MakeOptimizer, device: str) -> None:
    """Where an optimizer keeps counts beside the parameters, they are put back there, and otherwise stay on the CPU."""
    copied = trained(seed=1, steps=2, make=make)[2].copy()
    with torch.device("meta"):
        _, optimizer, shards = trained(seed=2, steps=0)
    shards.load(copied)
    assert {state["step"].device.type for state in optimizer.state.values()} == {device}


def test_copy_is_not_the_original() -> None:
    """What is copied does not change when training goes on."""
    model, optimizer, shards = trained(seed=1, steps=2)
    copied = shards.copy()
    before = copied["tensors"]["0.weight"].clone()
    train(model, optimizer, range(2, 4))
    assert torch.equal(copied["tensors"]["0.weight"], before)
    assert not torch.equal(next(model.parameters()), before)


class GoesOn(TorchFunctionMode):
    """Changes a parameter at each call of torch, as a rank does that trains meanwhile."""

    def __init__(self, parameter: torch.Tensor) -> None:
        super().__init__()
        self._parameter = parameter

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch.no_grad():
            self._parameter.add_(1)
        return func(*args, **(kwargs or {}))


def test_parameters_that_change_while_they_are_copied() -> None:
    """A rank that goes on in the middle of a copy has saved nothing that could be used."""
    model, _, shards = trained(seed=1, steps=2)
    goes_on = GoesOn(next(model.parameters()))
    with pytest.raises(RuntimeError, match="changed while they were copied"), goes_on:
        shards.copy()


def test_copy_of_another_model() -> None:
    """Nothing is changed by a copy that does not fit, and the error names what does not."""
    model, _, shards = trained(seed=1, steps=2)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(ValueError, match=r"another model, or of other shards: 0\.bias, 0\.weight, 1\.bias"):
        shards.load(trained(seed=1, steps=1, width=6)[2].copy())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_newest_that_is_whole(tmp_path: Path) -> None:
    """What one rank did not finish, other sizes of the run and other files are passed over; steps count as numbers."""
    assert rescue.latest(tmp_path / "nowhere", 0, 2) is None
    for rank, step in ((0, 9), (1, 9), (0, 10), (1, 10), (0, 11)):
        rescue.save({"step": step}, stalled(rank, step, tmp_path))
    (tmp_path / "step-11" / "rank-1-of-2.pt.incomplete").touch()
    (tmp_path / "step-12").mkdir()
    (tmp_path / "notes").touch()
    (tmp_path / "step-best").mkdir()
    assert rescue.latest(tmp_path, 1, 2) == tmp_path / "step-10" / "rank-1-of-2.pt"
    assert rescue.latest(tmp_path, 0, 4) is None


def test_no_room(tmp_path: Path) -> None:
    """A file that cannot be written whole is not found."""
    (tmp_path / "step-3").mkdir()
    (tmp_path / "step-3" / "rank-0-of-2.pt.incomplete").symlink_to("/dev/full")
    with pytest.raises((OSError, RuntimeError)):
        rescue.save(torch.zeros(1_000_000), stalled(0, 3, tmp_path))
    assert not (tmp_path / "step-3" / "rank-0-of-2.pt").exists()
