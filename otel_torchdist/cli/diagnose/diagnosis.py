"""What is known about a run: the last known state of its ranks, and the verdict on them."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from otel_torchdist.cli.agents_verdict import agents_verdict, ranks_of
from otel_torchdist.errors import TapeError
from otel_torchdist.job.agents_verdict import AgentsVerdict
from otel_torchdist.job.deaths import read_death
from otel_torchdist.job.lives import RankLife
from otel_torchdist.job.runs import POLL_LIMIT, Run
from otel_torchdist.naming import name_ranks
from otel_torchdist.processes.state import SILENT_NS
from otel_torchdist.tape.layout import LiveWord
from otel_torchdist.tape.reader import TapeReader
from otel_torchdist.verdict.first_death import FirstDeath
from otel_torchdist.verdict.model import Verdict
from otel_torchdist.verdict.post_mortem import LastMoment, SeenEnd, age_ns, judge, last_moment, seen_end
from otel_torchdist.verdict.rules import StallRules
from otel_torchdist.verdict.wording.sentence import sentence
from otel_torchdist.world.assembly import as_finished
from otel_torchdist.world.follower import TapeFollower
from otel_torchdist.world.model import OperationView, RankView, life_in
from otel_torchdist.world.places import Place, Source, place_of
from otel_torchdist.world.recorded_stacks import RecordedStacks

BETWEEN_LOOKS_S: Final = 0.1
"""Seconds between two checks of silent ranks: a thread that waits for the GIL wakes up every 5 ms."""


@dataclass(frozen=True, slots=True)
class RankAccount:
    """One rank as it was at the last moment.

    Attributes:
        view: What its tape shows.
        life: What became of it.
        sign_ns: Its last sign of life, on the monotonic clock.
        stack: Where its stack was, if it has written one since its last record; None otherwise.
        pid: Its process id within its own PID namespace.
        tape: Its tape's path.
    """

    view: RankView
    life: RankLife
    sign_ns: int
    stack: Place | None
    pid: int
    tape: str

    @property
    def open(self) -> Sequence[OperationView]:
        """Its open operations: first those in which it waits, then the others, each oldest first."""
        return sorted(self.view.open, key=lambda operation: operation.waiting_since_ns is None)


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """A run at its last moment.

    Attributes:
        run: The run.
        moment_ns: That moment, on this node's monotonic clock.
        is_now: Whether that moment is now, because a rank is alive.
        wall_offset_ns: Wall clock minus monotonic clock.
        threshold_s: Minimum age in seconds at which an open operation counts as stalled.
        ranks: Ranks that have a tape here, ascending.
        verdict: The verdict, with places; None if nothing had stalled, or only what was expected to, and no rank was
            left behind, or if these tapes do not decide that.
        warnings: What could not be read.
        helpers: Diagnoses of the runs of processes that its ranks have started.
        end: What the deaths that an agent has seen show; None if it has not seen all of them.
        of_agents: The verdict of the agents of all nodes, if these tapes do not show as much.
    """

    run: Run
    moment_ns: int
    is_now: bool
    wall_offset_ns: int
    threshold_s: float
    ranks: tuple[RankAccount, ...]
    verdict: Verdict | None
    warnings: tuple[str, ...]
    helpers: tuple[Diagnosis, ...] = ()
    end: SeenEnd | None = None
    of_agents: AgentsVerdict | None = None

    @property
    def named(self) -> tuple[int, ...]:
        """The ranks that the verdict names."""
        if self.of_agents is not None:
            return ranks_of(self.of_agents)
        return self.verdict.ranks if self.verdict is not None else ()

    @property
    def has_verdict(self) -> bool:
        """Whether there is a verdict."""
        return self.verdict is not None or self.of_agents is not None

    @property
    def is_undecided(self) -> bool:
        """Whether ranks have died here, perhaps because of others that have no tape here."""
        return not self.has_verdict and bool(self.unknown) and self._has_died

    @property
    def _has_died(self) -> bool:
        return any(one.life in (RankLife.FAILED, RankLife.DEAD) for one in self.ranks)

    @property
    def unknown(self) -> tuple[int, ...]:
        """Ranks of the run that have no tape here, ascending."""
        known = {account.view.rank for account in self.ranks}
        return tuple(rank for rank in range(self.run.world_size) if rank not in known)

    @property
    def has_problem(self) -> bool:
        """Whether there is a verdict, or a rank has failed or died, here or among the helpers."""
        return self.has_verdict or self._has_died or any(helper.has_problem for helper in self.helpers)

    @property
    def has_long_wait(self) -> bool:
        """Whether a rank has waited somewhere for the threshold or longer, be that a stall or not."""
        waits = [one.waiting_since_ns for account in self.ranks for one in account.view.open]
        return any(self.before_s(since_ns) >= self.threshold_s for since_ns in waits if since_ns is not None)

    @property
    def verdict_age_s(self) -> float:
        """How long the first rank had waited, in seconds; 0 without a verdict."""
        moment_ns = self.end.at_ns if self.end is not None else self.moment_ns
        return age_ns(self.verdict, moment_ns) / 1e9 if self.verdict is not None else 0.0

    @property
    def hung_s(self) -> float | None:
        """How long the job hung before it was ended, in seconds; None if it did not."""
        end = self.end
        if end is None or not end.was_hung or end.verdict is None:
            return None
        return age_ns(end.verdict, end.at_ns) / 1e9

    @property
    def ended_together(self) -> FirstDeath | None:
        """The deaths of ranks that something ended at the same moment; None if nothing did."""
        first = self.end.first if self.end is not None and not self.has_verdict else None
        return first if first is not None and first.together else None

    @property
    def verdict_text(self) -> str:
        """The verdict as a sentence; '' without one."""
        if self.of_agents is not None:
            return self.of_agents.text
        return sentence(self.verdict, self.verdict_age_s) if self.verdict is not None else ""

    @property
    def undecided_text(self) -> str:
        """Why there is no verdict on deaths; '' if there are none, or if these tapes show all ranks."""
        if not self.is_undecided:
            return ""
        verb = "has" if len(self.unknown) == 1 else "have"
        return (
            f"{name_ranks(self.unknown)} {verb} no tape on this node, and ranks here may have ended because of "
            f"{'it' if len(self.unknown) == 1 else 'them'}"
        )

    def wall_ns(self, monotonic_ns: int) -> int:
        """Convert a monotonic time to nanoseconds since the epoch."""
        return monotonic_ns + self.wall_offset_ns

    def before_s(self, monotonic_ns: int) -> float:
        """Return how long before the last moment a monotonic time was, in seconds."""
        return max(self.moment_ns - monotonic_ns, 0) / 1e9


def diagnose_run(run: Run, rules: StallRules) -> Diagnosis:
    """Read all tapes of a run to their ends and judge it.

    Args:
        run: The run.
        rules: What counts as a stall.

    Raises:
        TapeError: None of its tapes can be read any more.
    """
    followers = {tape.identity.rank: _read_all(tape) for tape in run.tapes}
    now_ns = _see_who_runs(followers.values())
    views: list[RankView] = []
    warnings: list[str] = []
    for tape in run.tapes:
        view = followers[tape.identity.rank].view(now_ns)
        if view is None:
            warnings.append(f"{tape.path}: damaged")
            continue
        view = RecordedStacks(tape.path).shown_in(view)
        if view.is_dead and run.has_ended_with_parent(tape):
            view = as_finished(view)
        views.append(view if view.alive else dataclasses.replace(view, death=read_death(tape.path)))
        if _has_holes(tape):
            warnings.append(f"{tape.path}: {tape.lost} of its records are damaged or were never finished")
    if not views:
        raise TapeError(f"{run.directory}: no tape of this run can be read: {'; '.join(warnings)}")
    moment = last_moment(run.run_id, views, now_ns)
    end = seen_end(run.run_id, views, rules, now_ns)
    tapes = {tape.identity.rank: tape for tape in run.tapes}
    verdict = end.verdict if end is not None else judge(moment, rules)
    of_agents = agents_verdict(run.directory, run.world_size, moment.world, verdict)
    return Diagnosis(
        run=run,
        moment_ns=moment.world.taken_ns,
        is_now=moment.is_now,
        wall_offset_ns=views[0].wall_offset_ns,
        threshold_s=rules.threshold_s,
        ranks=tuple(_account(moment, view, tapes[view.rank]) for view in views),
        verdict=verdict if of_agents is None else None,
        warnings=tuple(warnings),
        end=end,
        of_agents=of_agents,
    )


def _read_all(tape: TapeReader) -> TapeFollower:
    """Poll until everything that was there is read; following what a live rank writes meanwhile would never end."""
    follower = TapeFollower(tape)
    for _ in range(2 + tape.capacity // POLL_LIMIT):
        follower.observe(tape.poll(POLL_LIMIT))
    return follower


def _see_who_runs(followers: Iterable[TapeFollower]) -> int:
    """Check twice if heartbeats are missing: the kernel's counts show which ranks run; returns the time after that."""
    now_ns = time.monotonic_ns()
    looks = [follower.view(now_ns) for follower in followers]
    if any(view is not None and view.alive and now_ns - view.heartbeat_ns >= SILENT_NS for view in looks):
        time.sleep(BETWEEN_LOOKS_S)
    return time.monotonic_ns()


def _has_holes(tape: TapeReader) -> bool:
    """Whether records are missing that the ring has not overwritten in normal operation."""
    return tape.lost > 0 and tape.words[LiveWord.NEXT_NUMBER] <= tape.capacity


def _account(moment: LastMoment, view: RankView, tape: TapeReader) -> RankAccount:
    then = moment.world.ranks[view.rank]
    place = place_of(then, None, moment.world.taken_ns)
    return RankAccount(
        view=view,
        life=life_in(view),
        sign_ns=moment.signs[view.rank],
        stack=place if place.source in (Source.STACK, Source.SIGNAL) else None,
        pid=tape.identity.pid,
        tape=str(tape.path),
    )
