"""Advice in sentences: what was measured, how to check it, and the page about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from otel_torchdist.advice.model import Advice, Topic
from otel_torchdist.critical_path.wording import call_of, sentence
from otel_torchdist.model.activity_kinds import TimeKind
from otel_torchdist.naming import name_ranks, readable
from otel_torchdist.units import amount, duration

Names = Mapping[str, str]
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
    """What was measured: `rank 2 is 51% of the critical path; …`."""
    return _FINDINGS[advice.topic](advice, names)


def check(advice: Advice) -> str:
    """How to check it."""
    if advice.cause is not None and advice.cause.main_kind is not TimeKind.COMPUTING:
        return _CHECKS_OF_TIME[advice.cause.main_kind]
    return _CHECKS[advice.topic]


def _not_computing(advice: Advice, names: Names) -> str:
    """What ranks do for longer than their peers that is not computing; '' if it is."""
    cause = advice.cause
    if cause is None or cause.main_kind is TimeKind.COMPUTING:
        return ""
    are = "is" if len(advice.ranks) == 1 else "are"
    return (
        f"{sentence(cause, names)}, and {are} {advice.share:.0%} of the critical path; otherwise a step would be up to "
        f"{duration(advice.gain_ns)} shorter"
    )


def _slow_rank(advice: Advice, names: Names) -> str:
    before = f" before {call_of(advice.label, names)}" if advice.label is not None else ""
    return _not_computing(advice, names) or (
        f"the computing of {name_ranks(advice.ranks)} is {advice.share:.0%} of the critical path; if it took as long as"
        f" its peers{before}, a step would be up to {duration(advice.gain_ns)} shorter"
    )


def _slow_node(advice: Advice, names: Names) -> str:
    return _not_computing(advice, names) or (
        f"{name_ranks(advice.ranks)} on {readable(advice.host)} compute longer than their peers on other nodes and are "
        f"{advice.share:.0%} of the critical path; otherwise a step would be up to {duration(advice.gain_ns)} shorter"
    )


def _unequal_stages(advice: Advice, _: Names) -> str:
    return (
        f"the stage of {name_ranks(advice.ranks)} computes longer than the others of its pipeline; if it took as long"
        f" as their mean, a step would be up to {duration(advice.gain_ns)} shorter"
    )


def _exposed(advice: Advice, names: Names) -> str:
    return (
        f"{advice.share:.0%} of the critical path is transfer, which no computing hides; most of it is "
        f"{call_of(advice.label, names)}, without which a step would be up to {duration(advice.gain_ns)} shorter"
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
        f"in a typical exchange the rank with most work has {advice.ratio:.1f} times the mean; in all of them together "
        f"{name_ranks(advice.ranks)} has most"
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
    TimeKind.DATA: "compare its storage, its samples and the processors that its loader's workers get with those of a "
    "peer: otel-torchdist watch shows the waits for data of each rank, py-spy dump --subprocesses what workers do",
    TimeKind.CHECKPOINT: "compare the files that it writes, and its storage, with those of a peer: the spans of "
    "checkpoints have stages, bytes and files",
    TimeKind.OPTIMIZER: "compare the parameters that its optimizer holds with those of a peer",
    TimeKind.BACKWARD: "profile the backward pass of this rank and of a peer (py-spy record, torch.profiler), and "
    "compare their data, clocks of CPU and GPU, and neighbours on the machine",
    TimeKind.REMOTE_CALL: "look for the worker that it calls: spans of remote procedure calls have both sides",
    TimeKind.COMPUTING: "",
}
_CHECKS: Final = {
    Topic.SLOW_RANK: "profile this rank and a peer before that line (py-spy record, torch.profiler), and compare their "
    "data, clocks of CPU and GPU, and neighbours on the machine",
    Topic.SLOW_NODE: "run the same job with that node replaced, or a benchmark of one node on it and on another",
    Topic.UNEQUAL_STAGES: "compare the layers of the stages, embedding and loss included; if the stage is on a machine "
    "of its own, exchange machines to see whether it is slow there too",
    Topic.EXPOSED: "otel-torchdist analyze --only calls shows its bus bandwidth: compare it with what nccl-tests or "
    "gloo reach there; --only path shows where it stands in the step",
    Topic.ACROSS_NODES: "otel-torchdist analyze --only graph lists the groups and their ranks, --only calls their "
    "bandwidth beside that of groups within a node",
    Topic.SMALL: "otel-torchdist analyze --only calls --by site,size lists them by size; compare step times with "
    "larger buckets",
    Topic.EXPERTS: "otel-torchdist analyze --only graph shows the balance; log how many tokens the router gives each "
    "expert",
}
