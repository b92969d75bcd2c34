"""The report on the parallelism graph."""

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
from otel_torchdist.model.text import amount, compress_ranks, share
from otel_torchdist.runs.histories import Source

SHOWN_GROUPS: Final = 3
SHOWN_PAIRS: Final = 8
_INDENT: Final = " " * 8


def lines_of_graph(graph: Graph, source: Source) -> Iterator[Text]:
    """Yield the report: the axes, then all other groups, then the traffic."""
    yield Text(source.headline)
    yield Text()
    yield Text(shape_of(graph), style="bold")
    total, has_hosts = sum(graph.sent.values()) + graph.unattributed_bytes, len({*graph.hosts.values()}) > 1
    for number, axis in enumerate(graph.axes, 1):
        yield Text()
        yield from _groups(f"axis {number}", axis, total, has_hosts)
    for groups in graph.groups:
        yield Text()
        yield from _groups(span_of(groups, len(graph.axes)), groups, total, has_hosts)
    yield from _traffic(graph)
    remarks = list(remarks_of(graph))
    if remarks:
        yield Text()
    yield from (Text(remark, style="yellow") for remark in remarks)


def _groups(title: str, groups: ParallelGroups, total: int, has_hosts: bool) -> Iterator[Text]:
    size, count = len(groups.members[0]), len(groups.members)
    number = "1 group" if count == 1 else f"{count} groups"
    examples = [compress_ranks(members) for members in groups.members[:SHOWN_GROUPS]]
    listed = " | ".join([*examples, *(["…"] if count > SHOWN_GROUPS else [])])
    yield Text.assemble((title, "bold"), f"  {role_of(groups)}: {number} of {size} ranks, {listed}")
    for purpose in groups.roles:
        yield Text(f"{_INDENT}{purpose.role.value}: {purpose.evidence}; {amount(purpose.sent_bytes)} sent")
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
        return "each on one node"
    return "across nodes" if across == count else f"{across} of {count} across nodes"


def _traffic(graph: Graph) -> Iterator[Text]:
    if not graph.sent:
        return
    yield Text()
    yield Text("most bytes from rank to rank, if libraries use rings in the order of the ranks", style="bold")
    for (source, destination), size in Counter(graph.sent).most_common(SHOWN_PAIRS):
        yield Text(f"{_INDENT}{source} → {destination}  {amount(size)}")
    between = between_hosts(graph)
    if len({*graph.hosts.values()}) > 1:
        crossing = sum(between.values())
        yield Text(f"{_INDENT}between nodes: {amount(crossing)}, {share(crossing, sum(graph.sent.values())) or '0%'}")
