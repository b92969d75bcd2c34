"""The verdict on a run whose end an agent has seen: from when each rank died, which it has left beside the tapes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from otel_torchdist.cli.diagnose.judgement import stalled_verdict
from otel_torchdist.stall.deaths import FirstDeath, first_death, torn_out_of
from otel_torchdist.stall.process_state import Stopped
from otel_torchdist.stall.root_finder import RootFinder
from otel_torchdist.stall.rules import StallRules
from otel_torchdist.stall.verdict import Verdict, locate
from otel_torchdist.stall.waits import DYING_NS
from otel_torchdist.stall.world import OperationView, RankView, Site, WorldSnapshot
from otel_torchdist.tape.layout import TapeState


@dataclass(frozen=True, slots=True)
class SeenEnd:
    """What the deaths of a run's ranks say.

    Attributes:
        verdict: With places; None when nobody held the others up, and nobody died first.
        at_ns: The moment of which it speaks.
        was_hung: Whether the verdict is on ranks that hung, and were ended afterwards.
        first: The death that explains the others; None when nobody has died.
    """

    verdict: Verdict | None
    at_ns: int
    was_hung: bool
    first: FirstDeath | None


def seen_end(run_id: int, views: Sequence[RankView], rules: StallRules, now_ns: int) -> SeenEnd | None:
    """Judge a run by the deaths that an agent has seen; None where it has not seen all that there were.

    Args:
        run_id: Its id.
        views: Its ranks as they are now.
        rules: Which waits are stalls.
        now_ns: Monotonic time.
    """
    first = first_death(views)
    if first is None or not first.is_known or not first.deaths:
        return None
    died_ns = min(view.death.at_ns for view in views if view.is_dead and view.death is not None)
    before = WorldSnapshot(run_id, died_ns, _by_rank([_alive_at(view, died_ns) for view in views]))
    hung = stalled_verdict(before, rules)
    if hung is not None:
        return SeenEnd(locate(before, hung), died_ns, True, first)
    ends = [view.death.at_ns for view in views if view.death is not None]
    end_ns = now_ns if any(view.alive for view in views) else max(ends)
    after = WorldSnapshot(run_id, end_ns, _by_rank([_gone(view) for view in views]))
    verdict = RootFinder(rules.threshold_ns).find(after, [], None)
    return SeenEnd(locate(after, verdict) if verdict is not None else None, end_ns, False, first)


def _by_rank(views: Sequence[RankView]) -> Mapping[int, RankView]:
    return MappingProxyType({view.rank: view for view in views})


def _gone(view: RankView) -> RankView:
    """A rank that was watched until it died."""
    if view.death is None:
        return view
    at_ns = view.death.at_ns
    return dataclasses.replace(view, gone_since_ns=at_ns, seen_alive_ns=at_ns - 1)


def _alive_at(view: RankView, at_ns: int) -> RankView:
    """A rank as it was just before the first one died, in the operations out of which that has thrown it."""
    death = view.death
    if death is None or view.state is TapeState.FINISHED or view.has_left:
        return view
    if view.state is TapeState.FAILED and torn_out_of(view) is None:
        return dataclasses.replace(view, gone_since_ns=death.at_ns)
    stopped = Stopped(death.stopped, death.stopped_since_ns) if death.stopped else None
    then = dataclasses.replace(
        view, alive=True, gone_since_ns=None, state=TapeState.RUNNING, failure="", stopped=stopped, death=None,
        ran_ns=death.ran_ns,
    )  # fmt: skip
    torn = torn_out_of(view)
    if torn is None or (torn.record.completed_ns or 0) < at_ns - DYING_NS:
        return then
    return _back_in(then, torn)


def _back_in(view: RankView, torn: OperationView) -> RankView:
    record = dataclasses.replace(torn.record, completed_ns=None, how=None, failure=0)
    lane, sequence = torn.site
    progress = dict(view.progress)
    if lane in progress and progress[lane].failed == sequence:
        progress[lane] = progress[lane]._replace(failed=0, failure="")
    inside = dataclasses.replace(torn, record=record, failure="", waiting_since_ns=record.waiting_since_ns)
    return dataclasses.replace(
        view, open=(*view.open, inside), last=_before(view.last, torn.site), progress=MappingProxyType(progress)
    )


def _before(last: OperationView | None, site: Site) -> OperationView | None:
    return None if last is None or last.site == site else last
