"""Orders for the process that times parts of recording, and its answers. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from benchmarks.steps.training import Switch


class Event(Enum):
    """What a part records; the value is the name in the report."""

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
    """A number of events of each kind, one after the other.

    Attributes:
        switch: Whether they are recorded.
        in_a_row: Events of a kind without anything between them.
        after_a_layer: Events of a kind that each come after a layer of a model.
    """

    switch: Switch
    in_a_row: int
    after_a_layer: int


@dataclass(frozen=True, slots=True)
class PartTimes:
    """Microseconds of processor time of an event.

    Attributes:
        in_a_row: The least of them.
        after_a_layer: Their median; None for what does not come in every step.
    """

    in_a_row: float
    after_a_layer: float | None
