"""What is kept for each series of a rank."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from otel_torchdist.telemetry.durations import TimedMessages
from otel_torchdist.telemetry.metric_pictures import GroupInfo, GroupPicture


@dataclass(slots=True, eq=False)
class Series:
    """Counters of one group and operation; what is timed, by size of message."""

    group: str
    operation: str
    entered: int = 0
    message_bytes: int = 0
    sizes: dict[str, TimedMessages] = field(default_factory=dict[str, TimedMessages])

    @property
    def timed(self) -> tuple[tuple[str, TimedMessages], ...]:
        """What is timed, as it is now."""
        return tuple((size, timed.copy()) for size, timed in self.sizes.items())


@dataclass(slots=True, eq=False)
class GroupProgress:
    """A group's label and the progress of its collectives."""

    label: str
    info: GroupInfo
    aligned: bool
    started: int | None = None
    completed: int | None = None

    @property
    def picture(self) -> GroupPicture:
        """The group as it is now."""
        return GroupPicture(self.label, self.info, self.started, self.completed)


class Target(NamedTuple):
    """Where an operation is counted; no progress where its sequence says nothing across ranks."""

    series: Series
    progress: GroupProgress | None
