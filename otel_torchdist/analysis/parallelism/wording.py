"""Sentences about a parallelism graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from otel_torchdist.analysis.parallelism.calls import MAX_SPREAD
from otel_torchdist.analysis.parallelism.graph import Graph, ParallelGroups
from otel_torchdist.analysis.parallelism.roles import Role
from otel_torchdist.model.text import amount, compress_ranks, name_ranks

TIMES: Final = " \N{MULTIPLICATION SIGN} "
UNKNOWN: Final = "unclear"


def shape_of(graph: Graph) -> str:
    """Return the world size as a product of the axes, with their roles."""
    factors = [f"{role_of(axis)} {len(axis.members[0])}" for axis in graph.axes]
    if graph.copies > 1 and graph.axes:
        factors.append(f"{graph.copies} copies")
    ranks = "1 rank" if graph.world_size == 1 else f"{graph.world_size} ranks"
    return f"{ranks} = {TIMES.join(factors)}" if factors else f"{ranks}, no groups"


def role_of(groups: ParallelGroups) -> str:
    """Return the roles of groups: `DP`, `TP + EP`; `unclear` if calls do not show any."""
    return " + ".join(evidence.role.value for evidence in groups.roles) or UNKNOWN


def span_of(groups: ParallelGroups, axes: int) -> str:
    """Name the axes that the groups span completely; `other` if they span some only in part."""
    if groups.span is None:
        return "other"
    names = [f"axis {place + 1}" if place < axes else "copies" for place in groups.span]
    return TIMES.join(names)


def balance_of(groups: ParallelGroups) -> str:
    """Describe the balance of experts in a sentence; '' for groups without experts, or if unknown."""
    imbalance = groups.imbalance
    if imbalance is None or not any(evidence.role is Role.EXPERT for evidence in groups.roles):
        return ""
    where = f" among {compress_ranks(imbalance.members)}" if len(groups.members) > 1 else ""
    exchanges = "1 exchange" if imbalance.exchanges == 1 else f"the median of {imbalance.exchanges:,} exchanges"
    return (
        f"balance: rank {imbalance.rank} has the most bytes{where}, {imbalance.ratio:.2f} times the mean; in "
        f"{exchanges} the busiest rank has {imbalance.typical_ratio:.2f} times the mean"
    )


def between_hosts(graph: Graph) -> Counter[tuple[str, str]]:
    """Return the bytes from host to host."""
    hosts = graph.hosts
    between: Counter[tuple[str, str]] = Counter()
    for (source, destination), size in graph.sent.items():
        if source in hosts and destination in hosts and hosts[source] != hosts[destination]:
            between[hosts[source], hosts[destination]] += size
    return between


def remarks_of(graph: Graph) -> Iterator[str]:
    """Yield sentences about missing data and contradictions."""
    if graph.unattributed_bytes:
        yield (
            f"{amount(graph.unattributed_bytes)} of all_to_all in groups of more than {MAX_SPREAD} ranks, and of "
            "messages to unknown ranks, are missing from the bytes between ranks"
        )
    if graph.unseen:
        yield f"not known: the calls of {name_ranks(graph.unseen)}"
    if not graph.steady:
        yield "there are no steps after the second: all calls are counted, including the start"
    for groups in (*graph.axes, *graph.groups):
        for name in groups.misnamed:
            yield f"named {name}, but its calls look like {role_of(groups)}"
        if any(evidence.role is Role.RING for evidence in groups.roles):
            yield (
                f"{_listed(groups)}: an interleaved pipeline and ring attention both send messages around a ring; "
                "there are too few calls to tell which this is"
            )
        if groups.inferred:
            yield f"{_listed(groups)}: some of these groups are inferred from the others; their ranks have no records"


def _listed(groups: ParallelGroups) -> str:
    return f"groups of {len(groups.members[0])} like {compress_ranks(groups.members[0])}"
