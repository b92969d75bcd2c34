"""When a job is to be ended that will not end by itself."""

from __future__ import annotations

from collections.abc import Sequence

from otel_torchdist.cli.demo.faults import passes
from otel_torchdist.cli.demo.options import DemoOptions
from otel_torchdist.cli.rank_rows import RankRow


def is_hopeless(options: DemoOptions, rows: Sequence[RankRow]) -> bool:
    """Whether ranks have waited for as long as a fault may last that does not pass.

    At the beginning they wait for those that are still loading; that does not count. Where ranks end, torchrun ends
    the rest.
    """
    if passes(options.fault) or not rows or not all(row.step for row in rows):
        return False
    return max((row.age_s for row in rows if row.age_s is not None), default=0.0) >= options.block_s
