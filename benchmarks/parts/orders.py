"""Orders for the process that times parts of recording, and its answers. Does not import torch."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from benchmarks.steps.training import Switch


class Event(Enum):
    """Kinds of events that a part records; the value is the name in the report."""

    FORWARD = "a forward of DDP: its buckets"
    UNIT = "a unit of FSDP2, gathered or reduced: its label"
    BACKWARD = "a backward pass"
    OPTIMIZER = "the step of an optimizer, which ends a training step"
    BATCH = "a batch of a DataLoader"
    SAVE = "a save of torch.distributed.checkpoint, 5 stages"
    FILE = "a file of torch.save"
    CALL = "an RPC, both sides together"


@dataclass(frozen=True, slots=True)
class PartTurn:
    """An order for events of each kind, one after the other.

    Attributes:
        switch: Whether and how they are recorded.
        in_a_row: Number of consecutive events of a kind.
        after_a_layer: Number of events of a kind that each follow a layer of a model.
    """

    switch: Switch
    in_a_row: int
    after_a_layer: int


@dataclass(frozen=True, slots=True)
class PartTimes:
    """The processor time of an event, in microseconds.

    Attributes:
        in_a_row: Minimum.
        after_a_layer: Median; None for events that do not occur in every step.
    """

    in_a_row: float
    after_a_layer: float | None
