"""The document that the live page draws: a pure function of a snapshot, the visitor, and the visitor's choices."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from otel_torchdist.config import TRACE_ID_PLACEHOLDER
from otel_torchdist.judge.stall.events import JudgingAgent
from otel_torchdist.model.ids import run_label
from otel_torchdist.model.text import MemberRank, compress_ranks, listed_ranks, readable
from otel_torchdist.show.live.blame import StallPart, ongoing_stall, stall_part
from otel_torchdist.show.live.groups import GroupRow, group_rows
from otel_torchdist.show.live.live_snapshot import AgentFacts, LiveRun, LiveSnapshot
from otel_torchdist.show.live.ranks import MAX_RANKS, Crowd, RankRow, RankState, crowds, rank_rows
from otel_torchdist.show.live.texts import MAX_SENTENCE, shown, shown_group
from otel_torchdist.show.live.timeline import MAX_LANES, LiveTimeline, timeline_of

MAX_LISTED: Final = 64
"""Upper bound on the runs in the list."""
MAX_LATE: Final = 8
"""Upper bound on the ranks listed as latecomers of a group, and on the groups listed."""


@dataclass(frozen=True, slots=True)
class RunItem:
    """A run in the list.

    Attributes:
        key: Identifies the run in the address of the page.
        run: First digits of its id; '' until known.
        owner: Id of its user.
        directory: Name of its job directory on this node.
        world_size: Number of its ranks on all nodes.
        ranks: Number of its observed ranks.
        state: `stalled`, `running` or `ended`.
    """

    key: str
    run: str
    owner: int
    directory: str
    world_size: int
    ranks: int
    state: str


@dataclass(frozen=True, slots=True)
class LateRank:
    """A rank that came last.

    Attributes:
        rank: The rank.
        calls: Number of calls in which it came last.
        late_s: Seconds that the other ranks waited only for it.
    """

    rank: int
    calls: int
    late_s: float


@dataclass(frozen=True, slots=True)
class GroupLateness:
    """The ranks that came last in the compared calls of a group.

    Attributes:
        group: Its name.
        calls: Number of compared calls.
        late: The ranks for which other ranks waited longest.
    """

    group: str
    calls: int
    late: tuple[LateRank, ...]


@dataclass(frozen=True, slots=True)
class FindingPart:
    """A finding other than a stall.

    Attributes:
        kind: Its kind, as in `torchdist_finding_info`: `mismatched`, `straggler`, …
        ranks: The named ranks.
        operation: The operation.
        group: Name of its group.
        trace_id: Id of its trace, in hex.
        text: The finding in a sentence.
        trace_url: Address of that trace; '' if no such address is configured.
        docs_url: Address of the text on this kind of finding.
    """

    kind: str
    ranks: str
    operation: str
    group: str
    trace_id: str
    text: str
    trace_url: str
    docs_url: str


@dataclass(frozen=True, slots=True)
class JudgePart:
    """Another agent that judges the run.

    Attributes:
        node: Its node.
        page: Address of its page; '' if it has none.
    """

    node: str
    page: str


@dataclass(frozen=True, slots=True)
class RunPart:
    """The chosen run.

    Attributes:
        item: Its entry in the list.
        judge: The agent that judges the run; None if this agent does.
        missing: Ranks of the run that this agent does not observe.
        hosts: Its nodes with at least one observed rank.
        stall: The ongoing stall, or the stall in which the run has ended; None if there is neither.
        crowds: Ranks in the same state.
        ranks: One row per rank, for the first 4,096 ranks.
        groups: Its process groups.
        groups_left_out: Number of groups left out.
        timeline: The last minute.
        lateness: Ranks that came last.
        findings: Mismatches, stragglers, and slow parts.
        records_lost: Number of records of its ranks that were not written or not read.
    """

    item: RunItem
    judge: JudgePart | None
    missing: str
    hosts: tuple[str, ...]
    stall: StallPart | None
    crowds: tuple[Crowd, ...]
    ranks: tuple[RankRow, ...]
    groups: tuple[GroupRow, ...]
    groups_left_out: int
    timeline: LiveTimeline
    lateness: tuple[GroupLateness, ...]
    findings: tuple[FindingPart, ...]
    records_lost: int


@dataclass(frozen=True, slots=True)
class LiveAnswer:
    """The response of `/live.json`.

    Attributes:
        instance: Distinguishes this agent from its predecessors on the same port.
        host: Name of the agent's node.
        at: Time of the snapshot, in seconds since 1970; 0 if there is none yet.
        threshold_s: Age from which a wait in an operation is a stall.
        watches: Whether this process watches the ranks; if not, another process of the node does.
        runs: The runs that this visitor may see.
        hidden: Number of runs that this visitor may not see.
        run: The chosen run; without a choice, the run that needs attention most; None if there is none.
        spans_dropped: Number of spans that could not be exported so far.
    """

    instance: str
    host: str
    at: float
    threshold_s: float
    watches: bool
    runs: tuple[RunItem, ...]
    hidden: int
    run: RunPart | None
    spans_dropped: int


def no_document(facts: AgentFacts) -> LiveAnswer:
    """Return the document before the first snapshot."""
    return LiveAnswer(facts.instance, shown(facts.host), 0.0, facts.threshold_s, True, (), 0, None, 0)


def document_of(
    snapshot: LiveSnapshot, facts: AgentFacts, user: int | None, key: str = "", lanes: Collection[int] = ()
) -> LiveAnswer:
    """Build the document for one visitor.

    Args:
        snapshot: The snapshot.
        facts: Constant facts about the agent.
        user: Id of the user whose runs may be seen; 0 or None for all.
        key: The run that the visitor has chosen; '' for none.
        lanes: Ranks whose operations the visitor wants to see; empty for the ranks that matter most.
    """
    allowed = [run for run in snapshot.runs if not user or run.owner == user]
    items = {run.key: _item(run) for run in allowed}
    ordered = sorted(allowed, key=lambda run: (_URGENCY[items[run.key].state], -len(run.seen.world.ranks)))
    chosen = next((run for run in ordered if run.key == key), ordered[0] if ordered else None)
    return LiveAnswer(
        instance=facts.instance,
        host=shown(facts.host),
        at=snapshot.wall_ns / 1e9,
        threshold_s=facts.threshold_s,
        watches=snapshot.watches,
        runs=tuple(items[run.key] for run in ordered[:MAX_LISTED]),
        hidden=len(snapshot.runs) - len(allowed),
        run=_part(chosen, items[chosen.key], snapshot, facts, lanes) if chosen is not None else None,
        spans_dropped=snapshot.spans_dropped,
    )


_URGENCY: Final = {"stalled": 0, "running": 1, "ended": 2}


def _item(run: LiveRun) -> RunItem:
    world = run.seen.world
    state = "stalled" if run.seen.ruling is not None else "running"
    if all(view.is_over for view in world.ranks.values()):
        state = "ended"
    members = sum(not isinstance(rank, MemberRank) for rank in world.ranks)  # without other runs in the same world
    return RunItem(run.key, run_label(world.run), run.owner, shown(run.directory), run.world_size, members, state)


def _part(run: LiveRun, item: RunItem, snapshot: LiveSnapshot, facts: AgentFacts, lanes: Collection[int]) -> RunPart:
    seen, world, now_ns = run.seen, run.seen.world, snapshot.taken_ns
    blame = ongoing_stall(seen)
    stall = stall_part(seen, blame, facts, now_ns)
    names = {key: shown_group(group) for view in world.ranks.values() for key, group in view.groups.items()}
    lines = {part.rank: part.line for part in stall.stacks} if stall is not None else {}
    rows = rank_rows(world, blame, lines, facts.threshold_s, snapshot.samples, now_ns)
    stalled = seen.ruling.operation_id.channel.group if seen.ruling is not None else ""
    groups, left_out = group_rows(world, stalled)
    judge = seen.judge
    unseen = (rank for rank in range(min(run.world_size, _MAX_WORLD_SIZE)) if rank not in world.ranks)
    return RunPart(
        item=item,
        judge=None if judge is None else _judge(judge),
        missing=compress_ranks(unseen),
        hosts=tuple(dict.fromkeys(row.host for row in rows)),
        stall=stall,
        crowds=crowds(rows),
        ranks=tuple(rows[:MAX_RANKS]),
        groups=groups,
        groups_left_out=left_out,
        timeline=timeline_of(
            world, list(lanes) or _default_lanes(rows), snapshot.bars, snapshot.samples, names, now_ns
        ),
        lateness=_lateness(run, names),
        findings=_findings(run, names, facts),
        records_lost=sum(snapshot.records_lost.get(view.nonce, 0) for view in world.ranks.values()),
    )


def _judge(judge: JudgingAgent) -> JudgePart:
    return JudgePart(shown(judge.node), judge.page if _PAGE.fullmatch(judge.page) else "")


_PAGE: Final = re.compile(r"http://[A-Za-z0-9._:\[\]-]{1,256}/")
"""Matches the address of another agent's page. It becomes a link, so nothing else may pass."""
_MAX_WORLD_SIZE: Final = 1 << 16
"""Upper bound on the world size that a tape may claim."""


def _default_lanes(rows: Sequence[RankRow]) -> list[int]:
    """Return the ranks to show in lanes if the visitor has chosen none: all, or the most important `MAX_LANES`."""
    if len(rows) <= MAX_LANES:
        return [row.rank for row in rows]
    named = [row.rank for row in rows if row.named][: MAX_LANES // 2]
    unnamed = [row.rank for row in rows if not row.named and row.state != RankState.UNREACHABLE.value]
    return [*named, *unnamed][:MAX_LANES]


def chosen_lanes(text: str) -> tuple[int, ...]:
    """Parse the ranks that a visitor has chosen, such as `0-7,16`; invalid parts are ignored."""
    return tuple(listed_ranks(text[:256])[:MAX_LANES])


def _lateness(run: LiveRun, names: Mapping[str, str]) -> tuple[GroupLateness, ...]:
    groups: list[GroupLateness] = []
    for group, counts in run.findings.arrivals.items():
        worst = sorted(counts.late_s.items(), key=lambda entry: -entry[1])[:MAX_LATE]
        late = tuple(LateRank(rank, counts.last[rank], seconds) for rank, seconds in worst)
        groups.append(GroupLateness(names.get(group, shown(group)), counts.calls, late))
    return tuple(sorted(groups, key=lambda row: -max((late.late_s for late in row.late), default=0.0))[:MAX_LATE])


def _findings(run: LiveRun, names: Mapping[str, str], facts: AgentFacts) -> tuple[FindingPart, ...]:
    return tuple(
        FindingPart(
            kind=finding.verdict,
            ranks=finding.ranks,
            operation=shown(finding.operation),
            group=names.get(finding.group, shown(finding.group)),
            trace_id=finding.trace_id,
            text=readable(finding.text, MAX_SENTENCE),
            trace_url=facts.trace_url.replace(TRACE_ID_PLACEHOLDER, finding.trace_id),
            docs_url=f"{facts.docs_url}/findings#{finding.verdict}",
        )
        for finding in run.findings.findings
    )
