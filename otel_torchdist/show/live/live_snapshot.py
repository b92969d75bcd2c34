"""The snapshots that the reader publishes for the live page while there are visitors. Frozen data only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from otel_torchdist.judge.stall.events import RunSeen
from otel_torchdist.telemetry.metrics.snapshots import RunFindings


class Bar(NamedTuple):
    """An operation of the recent past.

    Attributes:
        name: `all_reduce`, `send`, …
        group: `GroupView.key` of its group; '' if unknown.
        begin_ns: Time at which its rank arrived.
        end_ns: Time at which it ended.
    """

    name: str
    group: str
    begin_ns: int
    end_ns: int


class Sample(NamedTuple):
    """The counters of one rank at one moment.

    Attributes:
        at_ns: Monotonic time of the sample.
        communicating_ns: Total time with an operation in flight.
        blocked_ns: Total time with a thread blocked in a call or wait.
        overhead_ns: Total time that our own code took on its threads.
    """

    at_ns: int
    step: int
    communicating_ns: int
    blocked_ns: int
    overhead_ns: int


@dataclass(frozen=True, slots=True)
class AgentFacts:
    """Constant facts about a reader.

    Attributes:
        instance: Distinguishes it from its predecessors on the same port.
        host: Name of its node.
        user: Id of the user that it runs as.
        threshold_s: Age from which a wait in an operation is a stall.
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
    """A run.

    Attributes:
        key: Identifies the run in the page's address.
        owner: Id of the user that its ranks run as.
        directory: Name of its job directory on this node.
        world_size: Number of its ranks on all nodes.
        seen: Its state in the last pass.
        findings: Mismatches, stragglers, slow parts, and ranks that came last.
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
        bars: Newest ended operations, oldest first, by nonce of the tape.
        samples: Counters of the last minute, oldest first, by nonce.
        spans_dropped: Number of spans that could not be exported so far.
        records_lost: Number of records that were not written or not read, by nonce.
        watches: Whether this process watches the ranks; if not, another process of the node does.
    """

    taken_ns: int
    wall_ns: int
    runs: tuple[LiveRun, ...]
    bars: Mapping[int, tuple[Bar, ...]]
    samples: Mapping[int, tuple[Sample, ...]]
    spans_dropped: int
    records_lost: Mapping[int, int]
    watches: bool = True
