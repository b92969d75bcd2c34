"""The loss scale of scalers on a device is computed on the host, exactly and without reading the device."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

import pytest
import torch

from otel_torchdist.capture.core.torch_api import Patches
from otel_torchdist.capture.parts.loss_scale import LossScales
from otel_torchdist.capture.parts.steps import StepDetector


@pytest.fixture
def scales() -> Iterator[LossScales]:
    """Loss scales that treat scalers on the CPU like those on a device. torch's own scale is the expected value."""
    scales, patches = LossScales(reads_cpu=False), Patches()
    steps = StepDetector(lambda: 0, scales=scales)
    steps.hook(patches)
    yield scales
    patches.restore()
    steps.unhook()


def optimizer(fused: bool = False) -> torch.optim.Optimizer:
    """An optimizer with one parameter."""
    return torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1, fused=fused)


def step(scaler: torch.amp.GradScaler, *optimizers: torch.optim.Optimizer, overflows: bool) -> None:
    """Take a step, with or without an overflow in the last optimizer's gradients."""
    scaler.scale(torch.ones(1))
    for one in optimizers:
        value = math.inf if overflows and one is optimizers[-1] else 1.0
        one.param_groups[0]["params"][0].grad = torch.full((2,), value)
        scaler.step(one)
    scaler.update()


@pytest.mark.parametrize("seed", range(5))
def test_followed_scale_is_exact(scales: LossScales, seed: int) -> None:
    """The computed scale equals torch's: one or two optimizers, overflow, growth, odd factors, float32's limits."""
    generator = random.Random(seed)
    scaler = torch.amp.GradScaler(
        "cpu",
        init_scale=generator.choice([1.0, 65_536.0, 1e38]),
        growth_factor=generator.choice([2.0, 1.7]),
        backoff_factor=generator.choice([0.5, 0.3]),
        growth_interval=generator.choice([1, 2, 3]),
    )
    optimizers = [optimizer() for _ in range(generator.choice([1, 2]))]
    for _ in range(60):
        step(scaler, *optimizers, overflows=generator.random() < 0.3)
        assert scales.newest == scaler.get_scale()


def test_loaded_and_given_scales(scales: LossScales) -> None:
    """The scale of a loaded checkpoint, and a scale that the program sets, are used."""
    scaler, one = torch.amp.GradScaler("cpu", growth_interval=2), optimizer()
    step(scaler, one, overflows=False)
    saved = scaler.state_dict()
    step(scaler, one, overflows=True)
    scaler.load_state_dict(saved)
    step(scaler, one, overflows=False)
    assert scales.newest == scaler.get_scale() == 131_072.0
    scaler.scale(torch.ones(1))
    scaler.update(77.7)
    assert scales.newest == scaler.get_scale()
    restored = torch.amp.GradScaler("cpu")
    restored.load_state_dict(saved)
    step(restored, one, overflows=True)
    assert scales.newest == restored.get_scale() == 32_768.0


def test_what_is_not_known_is_not_said(scales: LossScales) -> None:
    """The scale is unknown for fused optimizers, gradients that are only unscaled, tensor scales, disabled scalers."""
    fused = torch.amp.GradScaler("cpu")
    step(fused, optimizer(fused=True), overflows=True)
    assert scales.newest is None
    unscaled, one = torch.amp.GradScaler("cpu"), optimizer()
    step(unscaled, one, overflows=False)
    assert scales.newest == 65_536.0
    unscaled.scale(torch.ones(1))
    one.param_groups[0]["params"][0].grad = torch.full((2,), math.inf)
    unscaled.unscale_(one)
    unscaled.update()
    assert scales.newest is None
    given = torch.amp.GradScaler("cpu")
    step(given, one, overflows=False)
    given.scale(torch.ones(1))
    given.update(torch.full((), 8.0))
    assert scales.newest is None
    step(given, one, overflows=False)
    assert scales.newest is None
    disabled = torch.amp.GradScaler("cpu", enabled=False)
    disabled.update()
    assert scales.newest is None


def test_scalers_from_before(scales: LossScales) -> None:
    """The scale of a scaler that is older than the recording is unknown, and so is FSDP1's."""
    from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

    scaler, one = torch.amp.GradScaler("cpu"), optimizer()
    scaler._scale, scaler._growth_tracker = torch.full((), 8.0), torch.full((), 0, dtype=torch.int32)
    step(scaler, one, overflows=False)
    assert scales.newest is None
    sharded = ShardedGradScaler("cpu", process_group=None)
    sharded.scale(torch.ones(1))
    scales.before_step(sharded)
    assert scales.newest is None
