"""A parallelism graph in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from otel_torchdist.analysis.parallelism.calls import MAX_SPREAD
from otel_torchdist.analysis.parallelism.graph import Graph, ParallelGroups
from otel_torchdist.analysis.parallelism.roles import Role
from otel_torchdist.model.naming import compress_ranks, name_ranks
from otel_torchdist.model.units import amount

TIMES: Final = " \N{MULTIPLICATION SIGN} "
UNKNOWN: Final = "unclear"


def shape_of(found: Graph) -> str:
    """Return the world as a product of its axes, with how many ranks there are."""
    factors = [f"{role_of(axis)} {len(axis.members[0])}" for axis in found.axes]
    if found.copies > 1 and found.axes:
        factors.append(f"{found.copies} copies")
    ranks = "1 rank" if found.world_size == 1 else f"{found.world_size} ranks"
    return f"{ranks} = {TIMES.join(factors)}" if factors else f"{ranks}, no groups"


def role_of(groups: ParallelGroups) -> str:
    """Return the purpose of groups, in a word; `unclear` if calls do not show it."""
    return " + ".join(one.role.value for one in groups.roles) or UNKNOWN


def span_of(groups: ParallelGroups, axes: int) -> str:
    """Return the axes of which groups are a product, in words; `other` for parts of such a product."""
    if groups.span is None:
        return "other"
    names = [f"axis {place + 1}" if place < axes else "copies" for place in groups.span]
    return TIMES.join(names)


def balance_of(groups: ParallelGroups) -> str:
    """Describe how evenly experts are used, in a sentence; '' for groups without experts, or where it is not known."""
    found = groups.imbalance
    if found is None or not any(one.role is Role.EXPERT for one in groups.roles):
        return ""
    where = f" among {compress_ranks(found.members)}" if len(groups.members) > 1 else ""
    exchanges = "1 exchange" if found.exchanges == 1 else f"the median of {found.exchanges:,} exchanges"
    return (
        f"balance: rank {found.rank} has the most bytes{where}, {found.ratio:.2f} times the mean; in {exchanges} the "
        f"busiest rank has {found.typical_ratio:.2f} times the mean"
    )


def between_hosts(found: Graph) -> Counter[tuple[str, str]]:
    """Return the bytes from host to host."""
    hosts = found.hosts
    between: Counter[tuple[str, str]] = Counter()
    for (source, destination), size in found.sent.items():
        if source in hosts and destination in hosts and hosts[source] != hosts[destination]:
            between[hosts[source], hosts[destination]] += size
    return between


def remarks_of(found: Graph) -> Iterator[str]:
    """Yield remarks on what is not known, and what does not fit."""
    if found.unattributed_bytes:
        yield (
            f"{amount(found.unattributed_bytes)} of all_to_all in groups of more than {MAX_SPREAD} ranks, and of "
            "messages to ranks that are not recorded, are in no line from rank to rank"
        )
    if found.unseen:
        yield f"not known: the calls of {name_ranks(found.unseen)}"
    if not found.steady:
        yield "there are no steps after the second: all calls are counted, with those of the start"
    for groups in (*found.axes, *found.groups):
        for name in groups.misnamed:
            yield f"named {name}, but its calls are those of {role_of(groups)}"
        if any(one.role is Role.RING for one in groups.roles):
            yield (
                f"{_listed(groups)}: stages of an interleaved pipeline and ring attention both send round a ring; "
                "these calls are too few to tell"
            )
        if groups.inferred:
            yield f"{_listed(groups)}: some of these groups follow from the others; there are no records of their ranks"


def _listed(groups: ParallelGroups) -> str:
    return f"groups of {len(groups.members[0])} like {compress_ranks(groups.members[0])}"
