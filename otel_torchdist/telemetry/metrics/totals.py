"""What is counted of a rank's operations as a whole, beside the counts by group and operation.

A total needs a field here and a line that counts it, its row in `definitions`, and its names in `semconv`: the state
from which the next reader continues and the snapshot that is shown both hold the whole of it.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from otel_torchdist.tape.layout import How
from otel_torchdist.tape.records import Operation


@dataclass(slots=True)
class RankTotals:
    """Counts of one rank's operations.

    Attributes:
        untracked: Operations that were handed to a device and whose end there is not known.
        failed: Operations that ended with an exception.
    """

    untracked: int = 0
    failed: int = 0

    def count_ended(self, operation: Operation) -> None:
        """Count an operation that has ended, in whatever way."""
        self.untracked += operation.how is How.UNTRACKED
        self.failed += operation.how is How.FAILED

    def copy(self) -> RankTotals:
        """Return an independent copy."""
        return dataclasses.replace(self)
