"""What `export` reports when it has written dumps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from otel_torchdist.cli.output.text import shown
from otel_torchdist.flight.export.dumps import Exported
from otel_torchdist.job.runs.runs import Run
from otel_torchdist.naming import have, name_ranks, readable

_MAX_NAMES: Final = 8


def report(exported: Exported, run: Run, folder: Path) -> Iterator[str]:
    """Yield the lines: what was written, what was not, and how it is opened.

    Args:
        exported: What was written.
        run: The run that it was written from.
        folder: Where it was written.
    """
    calls = sum(len(dump.entries) for dump in exported.dumps)
    dumps = _count(len(exported.dumps), "dump")
    yield f"{dumps} with {_count(calls, 'call')} of run {run.label or '-'} in {shown(folder)}"
    for reason, names in exported.left_out.counts():
        yield f"{_count(names.total(), 'call')} left out ({_listed(names)}): {reason.value}"
    for backend, library in sorted(exported.renamed.items()):
        name = readable(backend) or "without a name"
        yield f"backend {name} is written as {library}, because torchfrtrace may not know it"
    ranks = {dump.rank for dump in exported.dumps}
    members = {rank for dump in exported.dumps for group in dump.groups.values() for rank in group.ranks}
    missing = sorted({*range(run.world_size), *members} - ranks)
    if missing:
        yield f"{name_ranks(missing)} {have(missing)} no dump here, so torchfrtrace needs --allow-incomplete-ranks"
    incomplete = " --allow-incomplete-ranks" if missing else ""
    yield f"open with: torchfrtrace {shown(folder)}{incomplete}"


def _count(number: int, thing: str) -> str:
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"


def _listed(names: Counter[str]) -> str:
    """`put 12, signal 3`."""
    listed = [f"{readable(name)} {count:,}" for name, count in names.most_common(_MAX_NAMES)]
    more = len(names) - len(listed)
    return ", ".join([*listed, f"and {more} more"] if more else listed)
