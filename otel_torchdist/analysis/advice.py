"""Advice on a run: a measurement, a way to check it, and a documentation page. Never a recommended alternative."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from otel_torchdist.analysis.critical_path.critical_path import Cause, CauseKind, CriticalPath, PathKind
from otel_torchdist.analysis.critical_path.timelines import Label
from otel_torchdist.analysis.critical_path.wording import describe_call, describe_cause
from otel_torchdist.analysis.parallelism.calls import GroupCalls, WorldCalls
from otel_torchdist.analysis.parallelism.graph import Graph, ParallelGroups
from otel_torchdist.analysis.parallelism.roles import Role
from otel_torchdist.model.activity_kinds import TimeKind
from otel_torchdist.model.text import amount, duration, name_ranks, readable

Names = Mapping[str, str]
MIN_SHARE_RATIO: Final = 2.0
"""Point out ranks with at least this multiple of an equal share of the critical path."""
MIN_TRANSFER_SHARE: Final = 0.2
"""Point out transfers if they take at least this share of the critical path."""
MANY_OPERATIONS: Final = 50
"""Point out exchanges of gradients if a rank makes more than this number of operations in a step, on average small."""
SMALL_BYTES: Final = 1_000_000
"""Operations that send fewer bytes than this are small."""
MIN_WORK_RATIO: Final = 1.5
"""Point out experts if the busiest rank of a typical exchange has at least this multiple of the mean work."""
_WITHIN_LAYERS: Final = (Role.TENSOR, Role.SEQUENCE, Role.EXPERT, Role.CONTEXT)
"""Roles of groups that communicate several times in each layer, where transfers do not overlap with computing."""
_OF_GRADIENTS: Final = (Role.DATA, Role.SHARDED, Role.REPLICA)


class Topic(Enum):
    """The topics of advice."""

    SLOW_RANK = "slow rank"
    """A rank has at least twice its share of the critical path, and computes longer than its peers."""
    SLOW_NODE = "slow node"
    """Most ranks of one node compute longer than their peers elsewhere."""
    UNEQUAL_STAGES = "unequal stages"
    """A pipeline stage computes longer than the others."""
    EXPOSED = "exposed communication"
    """A notable part of the critical path is transfer."""
    ACROSS_NODES = "busy groups across nodes"
    """Groups that communicate within layers have members on different nodes."""
    SMALL = "many small operations"
    """Gradients are exchanged in many small operations."""
    EXPERTS = "unequal experts"
    """Experts have unequal amounts of work."""


@dataclass(frozen=True, slots=True)
class Advice:
    """A piece of advice. Fields that do not apply to its topic are empty, 0 or None.

    Attributes:
        ranks: The ranks concerned, ascending.
        host: The node concerned.
        label: The call concerned.
        role: The role of the groups concerned.
        groups: Number of groups concerned.
        share: Share of the critical path.
        gain_ns: Upper bound on the time a step would save; None if it cannot be replayed.
        step_bytes: Bytes that all members of the groups send in a step.
        step_operations: Operations of one rank in a step.
        operation_bytes: Bytes that a rank contributes to one operation, on average.
        ratio: The largest amount of work divided by the mean.
        cause: The cause on the critical path that the advice is based on; None for other topics.
    """

    topic: Topic
    ranks: tuple[int, ...] = ()
    host: str = ""
    label: Label | None = None
    role: str = ""
    groups: int = 0
    share: float = 0.0
    gain_ns: int | None = None
    step_bytes: int = 0
    step_operations: int = 0
    operation_bytes: int = 0
    ratio: float = 0.0
    cause: Cause | None = None


def advise(graph: Graph | None, calls: WorldCalls, path: CriticalPath | None) -> list[Advice]:
    """Derive advice, the greatest gain first.

    Args:
        graph: The parallelism graph; None if there are no groups.
        calls: The counts that the graph was derived from.
        path: The critical path; None if there is none.
    """
    pieces = [*_advice_from_path(path)] if path is not None and path.has_steps else []
    if graph is not None:
        pieces += _advice_from_graph(graph, calls)
    return sorted(pieces, key=lambda advice: -(advice.gain_ns or 0))


def _advice_from_path(path: CriticalPath) -> Iterator[Advice]:
    node_causes = [cause for cause in path.causes if cause.kind is CauseKind.NODE]
    ranks_of_slow_nodes = {rank for cause in node_causes for rank in cause.ranks}
    for cause in node_causes:
        share = _share(path, cause)
        yield Advice(Topic.SLOW_NODE, cause.ranks, cause.host, share=share, gain_ns=cause.gain_ns, cause=cause)
    named: set[int] = set()
    for cause in path.causes:
        share, gain_ns = _share(path, cause), cause.gain_ns
        match cause.kind:
            case CauseKind.STAGE:
                yield Advice(Topic.UNEQUAL_STAGES, cause.ranks, share=share, gain_ns=gain_ns)
            case CauseKind.LINE | CauseKind.RANK:
                is_new = not named.issuperset(cause.ranks)
                named.update(cause.ranks)
                if (
                    is_new
                    and share >= MIN_SHARE_RATIO / len(path.ranks)
                    and not ranks_of_slow_nodes.issuperset(cause.ranks)
                ):
                    yield Advice(
                        Topic.SLOW_RANK, cause.ranks, cause.host, cause.label, share=share, gain_ns=gain_ns, cause=cause
                    )
            case CauseKind.NODE | CauseKind.TRANSFER:
                pass  # nodes are handled above, transfers below
    transfer = path.by_kind[PathKind.TRANSFER] / path.path_ns if path.path_ns else 0.0
    longest = next((cause for cause in path.causes if cause.kind is CauseKind.TRANSFER), None)
    if transfer >= MIN_TRANSFER_SHARE and longest is not None:
        yield Advice(Topic.EXPOSED, label=longest.label, share=transfer, gain_ns=longest.gain_ns)


def _share(path: CriticalPath, cause: Cause) -> float:
    """Return the share of the path that is computing of a cause's ranks."""
    computing_ns = sum(time.on_path_ns for time in path.by_rank if time.rank in cause.ranks)
    return computing_ns / path.path_ns if path.path_ns else 0.0


def _advice_from_graph(graph: Graph, calls: WorldCalls) -> Iterator[Advice]:
    steps = max(1, calls.steps)
    for groups in (*graph.axes, *graph.groups):
        roles = [evidence.role for evidence in groups.roles]
        busy = next((role for role in roles if role in _WITHIN_LAYERS), None)
        if busy is not None and groups.across_hosts and calls.has_steps:
            yield Advice(
                Topic.ACROSS_NODES,
                role=busy.value,
                groups=groups.across_hosts,
                step_bytes=round(groups.sent_bytes / steps),
            )
        if calls.has_steps and any(role in _OF_GRADIENTS for role in roles):
            yield from _small_operations(groups, calls, steps)
        if groups.imbalance is not None and groups.imbalance.typical_ratio >= MIN_WORK_RATIO and Role.EXPERT in roles:
            yield Advice(
                Topic.EXPERTS,
                (groups.imbalance.rank,),
                role=Role.EXPERT.value,
                groups=len(groups.members),
                ratio=groups.imbalance.typical_ratio,
            )


def _small_operations(groups: ParallelGroups, calls: WorldCalls, steps: int) -> Iterator[Advice]:
    counted = [calls.groups[members] for members in groups.members if members in calls.groups]
    if not counted:
        return
    busiest = max(counted, key=_exchanges)
    members = len(groups.members[0])
    operations = _exchanges(busiest) / members / steps
    sent = busiest.sent / max(1, _exchanges(busiest))
    if operations > MANY_OPERATIONS and sent < SMALL_BYTES:
        role = next(evidence.role for evidence in groups.roles if evidence.role in _OF_GRADIENTS)
        yield Advice(
            Topic.SMALL,
            role=role.value,
            groups=len(groups.members),
            step_operations=round(operations),
            operation_bytes=round(sent),
        )


def _exchanges(group: GroupCalls) -> int:
    """Return the number of calls, over all members, that exchange more than a loss or a norm."""
    return sum(count.calls for shape, count in group.shapes.items() if not shape.is_small)


PAGES: Final = {
    Topic.SLOW_RANK: "docs/advice.md#slow-rank",
    Topic.SLOW_NODE: "docs/advice.md#slow-node",
    Topic.UNEQUAL_STAGES: "docs/advice.md#unequal-stages",
    Topic.EXPOSED: "docs/advice.md#exposed-communication",
    Topic.ACROSS_NODES: "docs/advice.md#busy-groups-across-nodes",
    Topic.SMALL: "docs/advice.md#many-small-operations",
    Topic.EXPERTS: "docs/advice.md#unequal-experts",
}


def finding(advice: Advice, names: Names) -> str:
    """Return the measurement as a sentence: `rank 2 is 51% of the critical path; …`."""
    return _FINDINGS[advice.topic](advice, names)


def check(advice: Advice) -> str:
    """Return the way to check the measurement."""
    if advice.cause is not None and advice.cause.main_kind is not TimeKind.COMPUTING:
        return _CHECKS_OF_TIME[advice.cause.main_kind]
    return _CHECKS[advice.topic]


def _not_computing(advice: Advice, names: Names) -> str:
    """Return the measurement for ranks whose extra time is not computing; '' if it is computing."""
    cause = advice.cause
    if cause is None or cause.main_kind is TimeKind.COMPUTING:
        return ""
    are = "is" if len(advice.ranks) == 1 else "are"
    return (
        f"{describe_cause(cause, names)}, and {are} {advice.share:.0%} of the critical path; without this, a step "
        f"would be up to {duration(advice.gain_ns)} shorter"
    )


def _slow_rank(advice: Advice, names: Names) -> str:
    before = f" before {describe_call(advice.label, names)}" if advice.label is not None else ""
    return _not_computing(advice, names) or (
        f"the computing of {name_ranks(advice.ranks)} is {advice.share:.0%} of the critical path; if it took as long as"
        f" its peers{before}, a step would be up to {duration(advice.gain_ns)} shorter"
    )


def _slow_node(advice: Advice, names: Names) -> str:
    return _not_computing(advice, names) or (
        f"{name_ranks(advice.ranks)} on {readable(advice.host)} compute longer than their peers on other nodes and are "
        f"{advice.share:.0%} of the critical path; without this, a step would be up to "
        f"{duration(advice.gain_ns)} shorter"
    )


def _unequal_stages(advice: Advice, _: Names) -> str:
    return (
        f"the stage of {name_ranks(advice.ranks)} computes longer than the others of its pipeline; if it took as long"
        f" as their mean, a step would be up to {duration(advice.gain_ns)} shorter"
    )


def _exposed(advice: Advice, names: Names) -> str:
    return (
        f"{advice.share:.0%} of the critical path is transfer that no computing hides; the largest part is "
        f"{describe_call(advice.label, names)}, without which a step would be up to {duration(advice.gain_ns)} shorter"
    )


def _across_nodes(advice: Advice, _: Names) -> str:
    groups = "1 group" if advice.groups == 1 else f"{advice.groups} groups"
    return f"{groups} for {advice.role} have members on different nodes; they send {amount(advice.step_bytes)} a step"


def _small(advice: Advice, _: Names) -> str:
    return (
        f"for {advice.role} each rank makes {advice.step_operations:,} operations a step, which send "
        f"{amount(advice.operation_bytes)} each on average"
    )


def _experts(advice: Advice, _: Names) -> str:
    return (
        f"in a typical exchange the rank with the most work has {advice.ratio:.1f} times the mean; over all exchanges "
        f"{name_ranks(advice.ranks)} has the most"
    )


_FINDINGS: Final[Mapping[Topic, Callable[[Advice, Names], str]]] = {
    Topic.SLOW_RANK: _slow_rank,
    Topic.SLOW_NODE: _slow_node,
    Topic.UNEQUAL_STAGES: _unequal_stages,
    Topic.EXPOSED: _exposed,
    Topic.ACROSS_NODES: _across_nodes,
    Topic.SMALL: _small,
    Topic.EXPERTS: _experts,
}
_CHECKS_OF_TIME: Final = {
    TimeKind.DATA: "compare its storage, its samples and its loader workers' CPUs with a peer's: otel-torchdist watch "
    "shows each rank's waits for data, py-spy dump --subprocesses shows what workers do",
    TimeKind.CHECKPOINT: "compare its files and its storage with a peer's: the spans of checkpoints have stages, bytes "
    "and files",
    TimeKind.OPTIMIZER: "compare the parameters of its optimizer with a peer's",
    TimeKind.BACKWARD: "profile the backward pass of this rank and of a peer (py-spy record, torch.profiler), and "
    "compare their data, clocks of CPU and GPU, and other processes on the machine",
    TimeKind.REMOTE_CALL: "look for the worker that it calls: spans of remote procedure calls have both sides",
    TimeKind.COMPUTING: "",
}
_CHECKS: Final = {
    Topic.SLOW_RANK: "profile this rank and a peer before that line (py-spy record, torch.profiler), and compare their "
    "data, clocks of CPU and GPU, and other processes on the machine",
    Topic.SLOW_NODE: "run the same job with that node replaced, or a benchmark of one node on it and on another",
    Topic.UNEQUAL_STAGES: "compare the layers of the stages, embedding and loss included; if the stage is on a machine "
    "of its own, exchange machines to see whether it is slow there too",
    Topic.EXPOSED: "otel-torchdist analyze --only calls shows its bus bandwidth: compare it with what nccl-tests or "
    "gloo reach there; --only path shows where it occurs in the step",
    Topic.ACROSS_NODES: "otel-torchdist analyze --only graph lists the groups and their ranks, --only calls their "
    "bandwidth beside the bandwidth of groups within a node",
    Topic.SMALL: "otel-torchdist analyze --only calls --by site,size lists them by size; compare step times with "
    "larger buckets",
    Topic.EXPERTS: "otel-torchdist analyze --only graph shows the balance; log how many tokens the router gives each "
    "expert",
}
