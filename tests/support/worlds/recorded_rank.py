"""Ranks of worlds without processes that keep the calls that have ended, as recordings do."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from otel_torchdist.model.calls import GroupView, OperationView
from otel_torchdist.model.kinds import Blame, How
from tests.support.worlds.fake_world import FakeRank


@dataclass
class RecordedRank(FakeRank):
    """A rank whose ended calls are kept.

    Attributes:
        ended: The calls that have ended, in the order of their ends.
        usual_end: How a call ends where nothing else is given.
    """

    ended: list[OperationView] = field(default_factory=list[OperationView])
    usual_end: How = How.WAIT

    def end(
        self,
        number: int,
        at_s: float,
        how: How | None = None,
        failure: str = "",
        blame: Blame = Blame.UNKNOWN,
        is_refused: bool = False,
    ) -> None:
        """End an operation, and keep it."""
        super().end(number, at_s, self.usual_end if how is None else how, failure, blame, is_refused)
        assert self.last is not None
        self.ended.append(self.last)

    def call(self, group: GroupView, at_s: float, name: str = "all_reduce", **others: Any) -> None:
        """Make a call that ends at once."""
        self.end(self.enter(group, at_s, name, **others), at_s + 0.001)

    @property
    def calls(self) -> tuple[OperationView, ...]:
        """All its calls in the order in which they were made."""
        return tuple(sorted((*self.ended, *self.open.values()), key=lambda operation: operation.record.number))
