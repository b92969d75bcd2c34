"""When a job is to be ended that will not end by itself."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from otel_torchdist.cli.demo.faults import passes
from otel_torchdist.cli.demo.options import DemoOptions
from otel_torchdist.cli.rank_rows import Doing, RankRow

GONE_FOR_S: Final = 2.0
"""Then the last verdict has been given: one that needs a second look has had it."""
_GONE: Final = (Doing.DEAD, Doing.FAILED)


class Hopeless:
    """Watches a job with a fault that does not pass; with any other it sees no reason to end it."""

    def __init__(self, options: DemoOptions) -> None:
        """Nothing has happened yet."""
        self._passes = passes(options.fault)
        self._block_s = options.block_s
        self._gone_since: float | None = None

    def reason(self, rows: Sequence[RankRow]) -> str:
        """Why the job is to be ended now; '' as long as it is not."""
        if self._passes or not rows:
            return ""
        if self._gone_for_s(rows) >= GONE_FOR_S:
            return "No rank is left"
        if self._longest_wait_s(rows) >= self._block_s:
            return f"The training has hung for {self._block_s:g} s"
        return ""

    def _longest_wait_s(self, rows: Sequence[RankRow]) -> float:
        """At the beginning ranks wait for those that are still loading; that does not count."""
        if not all(row.step for row in rows):
            return 0.0
        return max((row.age_s for row in rows if row.age_s is not None), default=0.0)

    def _gone_for_s(self, rows: Sequence[RankRow]) -> float:
        if not all(row.doing in _GONE for row in rows):
            self._gone_since = None
            return 0.0
        if self._gone_since is None:
            self._gone_since = time.monotonic()
        return time.monotonic() - self._gone_since
