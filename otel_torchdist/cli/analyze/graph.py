"""The parallelism graph for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from rich.text import Text

from otel_torchdist.analysis.parallelism.graph import Graph, ParallelGroups
from otel_torchdist.analysis.parallelism.wording import (
    balance_of,
    between_hosts,
    remarks_of,
    role_of,
    shape_of,
    span_of,
)
from otel_torchdist.cli.histories import Source
from otel_torchdist.model.naming import compress_ranks
from otel_torchdist.model.units import amount, share

SHOWN_GROUPS: Final = 3
SHOWN_PAIRS: Final = 8
_INDENT: Final = " " * 8


def lines_of_graph(found: Graph, source: Source) -> Iterator[Text]:
    """Describe the axes, then all other groups, then the traffic."""
    yield Text(source.headline)
    yield Text()
    yield Text(shape_of(found), style="bold")
    total, has_hosts = sum(found.sent.values()) + found.unattributed_bytes, len({*found.hosts.values()}) > 1
    for nth, axis in enumerate(found.axes, 1):
        yield Text()
        yield from _groups(f"axis {nth}", axis, total, has_hosts)
    for other in found.groups:
        yield Text()
        yield from _groups(span_of(other, len(found.axes)), other, total, has_hosts)
    yield from _traffic(found)
    remarks = list(remarks_of(found))
    if remarks:
        yield Text()
    yield from (Text(remark, style="yellow") for remark in remarks)


def _groups(title: str, groups: ParallelGroups, total: int, has_hosts: bool) -> Iterator[Text]:
    size, count = len(groups.members[0]), len(groups.members)
    number = "1 group" if count == 1 else f"{count} groups"
    examples = [compress_ranks(members) for members in groups.members[:SHOWN_GROUPS]]
    listed = " | ".join([*examples, *(["…"] if count > SHOWN_GROUPS else [])])
    yield Text.assemble((title, "bold"), f"  {role_of(groups)}: {number} of {size} ranks, {listed}")
    for one in groups.roles:
        yield Text(f"{_INDENT}{one.role.value}: {one.evidence}; {amount(one.sent_bytes)} sent")
    if balance_of(groups):
        yield Text(f"{_INDENT}{balance_of(groups)}")
    facts = [f"{share(groups.sent_bytes, total) or '0%'} of all bytes"]
    if groups.across_hosts is not None and has_hosts:
        facts.append(_hosts(groups.across_hosts, count))
    if groups.names:
        facts.append(f"named {', '.join(groups.names)}")
    yield Text(f"{_INDENT}{'; '.join(facts)}")


def _hosts(across: int, count: int) -> str:
    if not across:
        return "each on one host"
    return "across hosts" if across == count else f"{across} of {count} across hosts"


def _traffic(found: Graph) -> Iterator[Text]:
    if not found.sent:
        return
    yield Text()
    yield Text("most bytes from rank to rank, if libraries use rings in the order of the ranks", style="bold")
    for (source, destination), size in Counter(found.sent).most_common(SHOWN_PAIRS):
        yield Text(f"{_INDENT}{source} → {destination}  {amount(size)}")
    between = between_hosts(found)
    if len({*found.hosts.values()}) > 1:
        crossing = sum(between.values())
        yield Text(f"{_INDENT}between hosts: {amount(crossing)}, {share(crossing, sum(found.sent.values())) or '0%'}")
