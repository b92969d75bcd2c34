"""Groups that ranks have not created in the same order, in words."""

from __future__ import annotations

from typing import Final

from otel_torchdist.naming import have, name_ranks
from otel_torchdist.verdict.wording.frames import at_line
from otel_torchdist.world.mismatch import Mismatch

_RULE: Final = "all ranks must create all groups, also those of others, in the same order"
_MAX_PARTIES: Final = 3


def describe_creations(mismatch: Mismatch) -> str:
    """`rank 3 has created group 2 with ranks 2-3 at build, train.py:12, where ranks 0-2 have created it with …`."""
    number = mismatch.operation
    sites = [side.site for side in mismatch.ways.sides] if mismatch.ways is not None else []
    lines = {site for site in sites if site is not None}
    common = at_line(lines.pop()) if len(lines) == 1 else ""
    own = [at_line(site) if not common else "" for site in sites] or [""] * len(mismatch.parties)
    (majority, many), *others = mismatch.parties
    usual = f"with {majority}{own[0]}"
    parties = [
        f"{name_ranks(ranks)} {have(ranks)} created group {number} with {members}{line}"
        for (members, ranks), line in zip(others[:_MAX_PARTIES], own[1:], strict=False)
    ]
    return f"{', '.join(parties)}, where {name_ranks(many)} {have(many)} created it {usual}{common}: {_RULE}"
