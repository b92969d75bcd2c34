"""The number of events in a training step. Does not import torch."""

from __future__ import annotations

from benchmarks.parts.orders import Event
from benchmarks.steps.training import Model, Parallelism


def events_of_a_step(parallelism: Parallelism, model: Model) -> dict[Event, int]:
    """Return the number of events of each kind in a step of `step_time`'s model."""
    found = {Event.BACKWARD: 1, Event.OPTIMIZER: 1, Event.BATCH: 1}
    if parallelism is Parallelism.DDP:
        return {**found, Event.FORWARD: 1}
    units = model.layers + 1
    # Each unit is gathered in forward and in backward (all but the first are prefetched there), and then reduced.
    return {**found, Event.UNIT: 4 * units - 1}
