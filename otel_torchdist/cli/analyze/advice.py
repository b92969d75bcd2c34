"""Advice for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rich.text import Text

from otel_torchdist.advice import PAGES, check, finding
from otel_torchdist.analysis.analyzer import Analysis
from otel_torchdist.cli.histories import Source
from otel_torchdist.critical_path.model import CriticalPath


def lines_of_advice(found: Analysis, source: Source) -> Iterator[Text]:
    """Describe what is worth looking into, what would bring most first."""
    yield Text(source.headline)
    names = group_names(found.path)
    if found.path is None or not found.path.has_steps:
        yield Text("no steady steps are recorded: nothing is known of the critical path", style="yellow")
    if not found.advice:
        yield Text()
        yield Text("nothing stands out")
    for one in found.advice:
        yield Text()
        yield Text.assemble((one.topic.value, "bold"), f": {finding(one, names)}")
        yield Text(f"    check: {check(one)}")
        yield Text(f"    more: {PAGES[one.topic]}")


def group_names(path: CriticalPath | None) -> Mapping[str, str]:
    """Return the names of groups by their keys, as sentences need them."""
    return path.group_names if path is not None else dict[str, str]()
