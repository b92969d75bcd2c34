"""How often parts of recording come in a training step. Needs no torch."""

from __future__ import annotations

from benchmarks.parts.orders import Event
from benchmarks.steps.training import Model, Parallelism


def events_of_a_step(parallelism: Parallelism, model: Model) -> dict[Event, int]:
    """How often each event comes in a step of the model that `step_time` trains."""
    found = {Event.BACKWARD: 1, Event.OPTIMIZER: 1, Event.BATCH: 1}
    if parallelism is Parallelism.DDP:
        return {**found, Event.FORWARD: 1}
    units = model.layers + 1
    # Each is gathered in forward and in backward, there also ahead of its turn but for the first, and then reduced.
    return {**found, Event.UNIT: 4 * units - 1}
