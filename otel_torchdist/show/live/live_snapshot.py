"""What the reader publishes for the live page, while there are visitors. Frozen data only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from otel_torchdist.judge.stall.events import RunSeen
from otel_torchdist.telemetry.metrics.snapshots import RunFindings


class Bar(NamedTuple):
    """One operation of the recent past.

    Attributes:
        name: `all_reduce`, `send`, …
        group: `GroupView.key` of its group; '' if it is not known.
        begin_ns: When its rank arrived at it.
        end_ns: When it ended.
    """

    name: str
    group: str
    begin_ns: int
    end_ns: int


class Sample(NamedTuple):
    """The counters of one rank at one moment.

    Attributes:
        at_ns: That moment.
        step: Its step.
        communicating_ns: Time with an operation in flight, since it began.
        blocked_ns: Time with a thread blocked in a call or wait.
        overhead_ns: Time that our own code took on its threads.
    """

    at_ns: int
    step: int
    communicating_ns: int
    blocked_ns: int
    overhead_ns: int


@dataclass(frozen=True, slots=True)
class AgentFacts:
    """What does not change while a reader runs.

    Attributes:
        instance: Distinguishes it from its predecessors on the same port.
        host: Name of its node.
        user: Id of the user that it runs as.
        threshold_s: Age at which an operation stalls.
        trace_url: Address of a trace with `{trace_id}` in it; '' for none.
        docs_url: Address of the pages on verdicts and findings, relative to the live page or absolute.
    """

    instance: str
    host: str
    user: int
    threshold_s: float
    trace_url: str = ""
    docs_url: str = "docs"


@dataclass(frozen=True, slots=True)
class LiveRun:
    """One run.

    Attributes:
        key: Names it in the page's address.
        owner: Id of the user that its ranks run as.
        directory: Name of its job directory on this node.
        world_size: Number of its ranks on all nodes.
        seen: What was seen of it in the last pass.
        findings: Mismatches, stragglers, what is slow, and which ranks came last.
    """

    key: str
    owner: int
    directory: str
    world_size: int
    seen: RunSeen
    findings: RunFindings = field(default_factory=RunFindings)


@dataclass(frozen=True, slots=True)
class LiveSnapshot:
    """Everything that a page can show at one moment.

    Attributes:
        taken_ns: Monotonic time.
        wall_ns: The same moment by the wall clock.
        runs: The runs.
        bars: By nonce of the tape, its newest operations that have ended, oldest first.
        samples: By nonce, the counters of the last minute, oldest first.
        spans_dropped: Spans that could not be exported so far.
        records_lost: By nonce, records that were not written or not read.
        watches: Whether this process judges or follows; if not, another process of the node does.
    """

    taken_ns: int
    wall_ns: int
    runs: tuple[LiveRun, ...]
    bars: Mapping[int, tuple[Bar, ...]]
    samples: Mapping[int, tuple[Sample, ...]]
    spans_dropped: int
    records_lost: Mapping[int, int]
    watches: bool = True
