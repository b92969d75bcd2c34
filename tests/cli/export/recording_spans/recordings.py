"""Recordings of worlds without processes, as dumps of flight recorders would give them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from otel_torchdist.cli.export.recording_spans.recording import ImportedFindings as Findings
from otel_torchdist.cli.export.recording_spans.recording import Judgment, Provenance, Recording, choose, recording_of
from otel_torchdist.cli.export.recording_spans.recording import WantedCalls as Selection
from otel_torchdist.judge.verdict.past.last_moment import last_moment
from otel_torchdist.judge.verdict.past.post_mortem import judge
from otel_torchdist.judge.verdict.rules import StallRules
from otel_torchdist.judge.verdict.verdict import Verdict
from otel_torchdist.judge.verdict.wording.sentence import sentence
from otel_torchdist.model.calls import GroupView
from otel_torchdist.model.history import RankHistory
from otel_torchdist.model.kinds import How
from otel_torchdist.model.snapshot import WorldSnapshot
from tests.support.worlds.fake_world import THRESHOLD_NS, WALL_OFFSET_NS, FakeRank, FakeWorld, group_of
from tests.support.worlds.schedule import RecordedRank


@dataclass(frozen=True)
class Found:
    """The content of dumps.

    Attributes:
        findings: Verdicts on the last calls.
        histories: All recorded calls of each rank.
    """

    findings: Findings
    histories: tuple[RankHistory, ...]

    def selected(self, last: int | None = None, ranks: frozenset[int] | None = None) -> Recording:
        """The recording, with the calls that the user wants to see."""
        return recording_of(self.findings, choose(self.findings, Selection(last, ranks)), self.histories)


class RecordedWorld(FakeWorld):
    """Ranks that keep all their calls.

    Attributes:
        recorded: The ranks.
    """

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.recorded = [RecordedRank(rank, usual_end=How.WATCHDOG) for rank in range(size)]
        self.ranks = list[FakeRank](self.recorded)

    def train(self, group: GroupView, calls: int, began_s: float = 0.0) -> float:
        """All members complete so many collectives, one each 10 ms; returns when the last one is over."""
        for nth in range(calls):
            self.meet(group, began_s + nth / 100)
        return began_s + calls / 100

    def found(self, now_s: float, missing: tuple[int, ...] = ()) -> Found:
        """What dumps of all ranks but the missing hold, taken at `now_s`, and the verdict on them."""
        here = [rank for rank in range(len(self.ranks)) if rank not in missing]
        world = self.snapshot(now_s, here)
        rules = StallRules(THRESHOLD_NS)
        verdict = judge(last_moment(world.run, world.in_order, world.taken_ns), rules)
        findings = Findings(
            provenance=Provenance("flight recorder", len(here), ("2.10",), ("2.27.3",), missing),
            world=world,
            judgments=(Judgment(verdict, text_of(verdict, world)),) if verdict is not None else (),
            threshold_ns=rules.threshold_ns,
        )
        size = len(self.ranks)
        histories = [RankHistory(rank, size, "", WALL_OFFSET_NS, self.recorded[rank].calls, 0) for rank in here]
        return Found(findings, tuple(histories))


def text_of(verdict: Verdict, world: WorldSnapshot) -> str:
    """Return the text of a verdict on dumps of unknown time."""
    return sentence(verdict, (world.taken_ns - verdict.since_ns) / 1e9, "up to")


def stalled(ranks: int = 4, calls: int = 20, absent: int = 2) -> RecordedWorld:
    """Ranks that have completed calls, after which one does not come to the next."""
    world = RecordedWorld(ranks)
    group = group_of(*range(ranks), description="default_pg")
    ended_s = world.train(group, calls)
    for rank in world.recorded:
        if rank.rank != absent:
            rank.enter(group, ended_s)
    return world


def at(found: Found, now_ns: int) -> Found:
    """Return the same recording, shifted in time."""
    world = found.findings.world
    offset_ns = now_ns - world.taken_ns
    views = world.ranks.items()
    ranks = {rank: dataclasses.replace(view, wall_offset_ns=offset_ns) for rank, view in views}
    return Found(
        dataclasses.replace(found.findings, world=dataclasses.replace(world, ranks=ranks)),
        tuple(dataclasses.replace(one, wall_offset_ns=offset_ns) for one in found.histories),
    )
