"""The diagnosis of a run: the last known state of its ranks, and the verdict on them."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from otel_torchdist.cli.diagnose.moment import ReportedMoment
from otel_torchdist.cli.output.progress import track
from otel_torchdist.cli.output.text import time_of_day
from otel_torchdist.errors import TapeError
from otel_torchdist.judge.stall.findings.remote_calls import troubled_calls
from otel_torchdist.judge.stall.findings.watch import FindingWatch
from otel_torchdist.judge.verdict.idle import MIN_BUSY_SHARE, idle_of, idle_place_of
from otel_torchdist.judge.verdict.past.last_moment import LastMoment
from otel_torchdist.judge.verdict.past.post_mortem import PostMortem, examine
from otel_torchdist.judge.verdict.rules import StallRules
from otel_torchdist.judge.verdict.wording.places import describe_idle
from otel_torchdist.judge.verdict.wording.sentence import sentence
from otel_torchdist.judge.world.assembly import as_finished, left_alone, with_other_parts, with_other_sizes
from otel_torchdist.judge.world.following.child_waits import ChildWaits
from otel_torchdist.judge.world.following.follower import TapeFollower
from otel_torchdist.judge.world.joining import joined
from otel_torchdist.judge.world.places import RankPlace, place_of
from otel_torchdist.judge.world.threads import RecordedStacks
from otel_torchdist.model.calls import OperationView
from otel_torchdist.model.finding import Finding, FindingKind, JudgedWorld
from otel_torchdist.model.lives import RankLife
from otel_torchdist.model.naming import compress_ranks, name_ranks
from otel_torchdist.model.snapshot import RankView, life_in
from otel_torchdist.node.job.kept_results import read_agents_verdict, read_kept_findings
from otel_torchdist.node.job.runs.lives import read_death
from otel_torchdist.node.job.runs.runs import Run
from otel_torchdist.node.processes.children import share_between, ticks_of_tree
from otel_torchdist.node.processes.state import SILENT_NS
from otel_torchdist.tape.identity import TapeIdentity, shares_pids
from otel_torchdist.tape.layout import LiveWord
from otel_torchdist.tape.reading.batch import Batch
from otel_torchdist.tape.reading.reader import TapeReader

MEASURED_S: Final = 0.5
"""Seconds for which the CPU use of a live run's ranks is measured."""


class IdleStanding(NamedTuple):
    """The lines at which all ranks of a run are idle, outside operations.

    Attributes:
        text: Describes the lines and the duration; '' if the ranks are not idle.
        is_long: Whether the duration is unusually long for this run.
        since_ns: Start, by the wall clock.
    """

    text: str = ""
    is_long: bool = False
    since_ns: int = 0


NOT_STANDING: Final = IdleStanding()


def standing_of(post_mortem: PostMortem, rules: StallRules, identities: Sequence[TapeIdentity]) -> IdleStanding:
    """Return the lines at which all ranks are idle at the last moment, if they have been idle for the stall timeout.

    Args:
        post_mortem: The state of the run.
        rules: Defines the stall timeout and unusually long idle times.
        identities: Identities of its tapes.
    """
    world = post_mortem.moment.world
    places = {view.nonce: place for view in world.ranks.values() if (place := idle_place_of(view)) is not None}
    idle = None if post_mortem.has_verdict else idle_of(world, places)
    lasted_ns = world.taken_ns - idle.since_ns if idle is not None else 0
    if idle is None or lasted_ns < rules.threshold_ns or (post_mortem.moment.is_now and _work(identities)):
        return NOT_STANDING
    text = describe_idle(idle, lasted_ns / 1e9, not post_mortem.moment.is_now)
    wall_offset_ns = next(iter(world.ranks.values())).wall_offset_ns
    return IdleStanding(text, idle.is_long(lasted_ns, rules.idle_ns), idle.since_ns + wall_offset_ns)


def _work(identities: Sequence[TapeIdentity]) -> bool:
    """Return whether a process, or one of its descendants, uses the CPU. Ignores processes of other PID namespaces."""
    within_reach = [identity.pid for identity in identities if shares_pids(identity)]
    before = [ticks_of_tree(pid) for pid in within_reach]
    time.sleep(MEASURED_S)
    after = [ticks_of_tree(pid) for pid in within_reach]
    shares = (share_between(*ticks, MEASURED_S) for ticks in zip(before, after, strict=True))
    return any(share >= MIN_BUSY_SHARE for share in shares)


BETWEEN_CHECKS_S: Final = 0.1
"""Seconds between two checks of silent ranks. A thread that waits for the GIL wakes up every 5 ms."""


@dataclass(frozen=True, slots=True)
class RankAccount:
    """One rank at the last moment.

    Attributes:
        view: Its state according to its tape.
        life: Its fate.
        sign_ns: Its last sign of life, on the monotonic clock.
        stack: Its line of code, from a stack newer than its last record; None without such a stack.
        pid: Its process id within its own PID namespace.
        tape: Path of its tape.
    """

    view: RankView
    life: RankLife
    sign_ns: int
    stack: RankPlace | None
    pid: int
    tape: str

    @property
    def open(self) -> Sequence[OperationView]:
        """Its open operations: first those in which it waits, then the others, each oldest first."""
        return sorted(self.view.open, key=lambda operation: operation.waiting_since_ns is None)


@dataclass(frozen=True, slots=True)
class Diagnosis(ReportedMoment):
    """A run at its last moment.

    Attributes:
        run: The run.
        post_mortem: The verdict and the state that it is based on.
        wall_offset_ns: Wall clock minus monotonic clock.
        threshold_s: Minimum age in seconds at which an open operation counts as stalled.
        ranks: Ranks that have a tape here, ascending.
        warnings: Unreadable parts.
        findings: Findings other than stalls, such as values that are not finite, a sentence each.
        past_findings: Findings of an agent that no longer hold at the last moment, a sentence each.
        standing: Lines at which all ranks are idle, outside operations. A finding if the idle time is unusually long.
        helpers: Diagnoses of the runs of helper processes that its ranks have started.
    """

    run: Run
    post_mortem: PostMortem
    wall_offset_ns: int
    threshold_s: float
    ranks: tuple[RankAccount, ...]
    warnings: tuple[str, ...]
    findings: tuple[str, ...] = ()
    past_findings: tuple[str, ...] = ()
    standing: IdleStanding = NOT_STANDING
    helpers: tuple[Diagnosis, ...] = ()

    @property
    def moment_ns(self) -> int:
        """The last moment, on this node's monotonic clock."""
        return self.post_mortem.moment.world.taken_ns

    @property
    def is_now(self) -> bool:
        """Whether that moment is now, because a rank is alive."""
        return self.post_mortem.moment.is_now

    @property
    def has_problem(self) -> bool:
        """Whether there is a verdict or a finding, or a rank has failed or died, here or among the helpers."""
        post_mortem = self.post_mortem
        has_own = post_mortem.has_verdict or post_mortem.has_deaths or bool(self.stuck_calls or self.findings)
        return has_own or any(helper.has_problem for helper in self.helpers)

    @property
    def stuck_calls(self) -> tuple[str, ...]:
        """Reasons why remote procedure calls open for the threshold cannot go on, a sentence each."""
        return tuple(
            finding.kind.with_next_step(finding.text)
            for finding in troubled_calls(self.post_mortem.moment.world)
            if finding.kind is not FindingKind.DEAD and self.before_s(finding.since_ns) >= self.threshold_s
        )

    @property
    def has_long_wait(self) -> bool:
        """Whether a rank has waited in an operation for the threshold or longer, stalled or not."""
        waits = [operation.waiting_since_ns for account in self.ranks for operation in account.view.open]
        return any(self.before_s(since_ns) >= self.threshold_s for since_ns in waits if since_ns is not None)

    @property
    def verdict_text(self) -> str:
        """The verdict as a sentence; '' without one."""
        post_mortem = self.post_mortem
        if post_mortem.of_agents is not None:
            return post_mortem.of_agents.text
        if post_mortem.verdict is None:
            return ""
        return sentence(post_mortem.verdict, post_mortem.age_ns / 1e9)

    @property
    def undecided_text(self) -> str:
        """Reason for the missing verdict on deaths; '' if there are none, or if these tapes show all ranks."""
        if not self.post_mortem.is_undecided:
            return ""
        unseen = self.post_mortem.unseen
        verb, them = ("has", "it") if len(unseen) == 1 else ("have", "them")
        return f"{name_ranks(unseen)} {verb} no tape on this node, and ranks here may have ended because of {them}"

    def wall_ns(self, monotonic_ns: int) -> int:
        """Convert a monotonic time to nanoseconds since the epoch."""
        return monotonic_ns + self.wall_offset_ns

    def before_s(self, monotonic_ns: int) -> float:
        """Return the seconds from a monotonic time to the last moment."""
        return max(self.moment_ns - monotonic_ns, 0) / 1e9


def diagnose_run(
    run: Run,
    rules: StallRules,
    keep: Callable[[TapeReader, Batch], None] | None = None,
    meets: Sequence[Run] = (),
) -> Diagnosis:
    """Read all tapes of a run to their ends and judge it.

    Args:
        run: The run.
        rules: Defines a stall.
        keep: Called with every batch of records.
        meets: Runs that share a world with this one, judged together under the largest of them; and candidates for
            other parts of its launch: see `with_other_parts`, `with_other_sizes`.

    Raises:
        TapeError: None of its tapes can be read any more.
    """
    runs = (run, *meets)
    followers = {tape.identity.nonce: TapeFollower(tape) for read in runs for tape in read.tapes}
    for follower in track(followers.values(), "Reading tapes", "tapes", len(followers)):
        _read_on(follower, keep)
    now_ns = _time_after_checks(followers.values())
    warnings: list[str] = []
    by_run = {place: _views_of(read, followers, keep, now_ns, warnings) for place, read in enumerate(runs)}
    together = joined({place: ranks for place, ranks in by_run.items() if ranks})
    nonces = {view.nonce for view in by_run[0].values()}
    place = next((at for at, ranks in together.items() if nonces & {view.nonce for view in ranks.values()}), None)
    if place is None:
        raise TapeError(f"{run.directory}: no tape of this run can be read: {'; '.join(warnings)}")
    ranks = with_other_sizes(with_other_parts(together))[place]
    run, views = runs[place], [view for _, view in sorted(left_alone(ranks).items())]
    written = read_agents_verdict(run.directory, run.run_id)
    post_mortem = examine(run.run_id, run.world_size, views, rules, now_ns, written)
    tapes = {tape.identity.nonce: tape for read in runs for tape in read.tapes}
    standing = standing_of(post_mortem, rules, [tape.identity for tape in run.tapes])
    findings, past_findings = _findings(run, post_mortem, standing)
    return Diagnosis(
        run=run,
        post_mortem=post_mortem,
        wall_offset_ns=views[0].wall_offset_ns,
        threshold_s=rules.threshold_s,
        ranks=tuple(_account(post_mortem.moment, view, tapes[view.nonce]) for view in views),
        warnings=tuple(warnings),
        findings=findings,
        past_findings=past_findings,
        standing=standing,
    )


def _views_of(
    run: Run,
    followers: Mapping[int, TapeFollower],
    keep: Callable[[TapeReader, Batch], None] | None,
    now_ns: int,
    warnings: list[str],
) -> dict[int, RankView]:
    """Return the current ranks of a run, and add warnings about unreadable tapes."""
    views: dict[int, RankView] = {}
    for tape in run.tapes:
        follower = followers[tape.identity.nonce]
        _read_on(follower, keep)  # a rank that is just ending has written its last records
        view = follower.view(now_ns)
        if view is None:
            warnings.append(f"{tape.path}: damaged")
            continue
        view = RecordedStacks(tape.path, tape.owner).shown_in(view)
        if view.alive:
            view = dataclasses.replace(view, twins=run.twins.get(view.rank, ()))
            view = dataclasses.replace(view, child=ChildWaits(tape.identity, tape.owner).check(view.stacks, now_ns))
        else:
            view = dataclasses.replace(view, death=read_death(tape.path, tape.owner))
        views[view.rank] = as_finished(view) if view.is_dead and run.has_ended_with_parent(tape) else view
        if _has_holes(tape):
            warnings.append(f"{tape.path}: {tape.lost} of its records are damaged or were never finished")
    return views


def _findings(run: Run, post_mortem: PostMortem, standing: IdleStanding) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return findings other than stalls: first those that hold at the last moment, then past ones.

    Findings that the tapes no longer show come from the notes of this node's agent.
    """
    watch, judged = FindingWatch(), JudgedWorld(post_mortem.moment.world, run.run_id)
    cause = post_mortem.verdict.mismatch if post_mortem.verdict is not None else None
    events = watch.compare(judged, cause) if post_mortem.moment.is_now else watch.conclude(judged, cause=cause)
    shown = [event for event in events if isinstance(event, Finding)]
    current_keys = {(finding.kind.value, compress_ranks(finding.ranks)) for finding in shown}
    if cause is not None:
        current_keys.add((FindingKind.MISMATCHED.value, compress_ranks(cause.ranks)))
    past_notes = [
        note for note in read_kept_findings(run.directory, run.run_id) if (note.kind, note.ranks) not in current_keys
    ]
    if standing.is_long:  # its sentence covers the whole time
        past_notes = [
            note for note in past_notes if note.kind != FindingKind.IDLE.value or 0 < note.until_ns < standing.since_ns
        ]
    holding = [*(finding.sentence for finding in shown), *(note.text for note in past_notes if not note.until_ns)]
    if standing.is_long:
        holding.append(FindingKind.IDLE.with_next_step(standing.text))
    return tuple(holding), tuple(
        f"until {time_of_day(note.until_ns)}: {note.text}" for note in past_notes if note.until_ns
    )


def _read_on(follower: TapeFollower, keep: Callable[[TapeReader, Batch], None] | None) -> None:
    for batch in follower.reader.rest():
        follower.observe(batch)
        if keep is not None:
            keep(follower.reader, batch)


def _time_after_checks(followers: Iterable[TapeFollower]) -> int:
    """Check ranks without recent heartbeats twice: two readings of the kernel's counters show which ranks run.

    Returns:
        The monotonic time after the checks.
    """
    now_ns = time.monotonic_ns()
    views = [follower.view(now_ns) for follower in followers]
    if any(view is not None and view.alive and now_ns - view.heartbeat_ns >= SILENT_NS for view in views):
        time.sleep(BETWEEN_CHECKS_S)
    return time.monotonic_ns()


def _has_holes(tape: TapeReader) -> bool:
    """Return whether records are missing although the ring has not wrapped around."""
    return tape.lost > 0 and tape.words[LiveWord.NEXT_NUMBER] <= tape.capacity


def _account(moment: LastMoment, view: RankView, tape: TapeReader) -> RankAccount:
    rank_view = moment.world.ranks[view.rank]
    position = place_of(rank_view, None, moment.world.taken_ns)
    return RankAccount(
        view=view,
        life=life_in(view),
        sign_ns=moment.signs[view.rank],
        stack=position if position.source.is_stack else None,
        pid=tape.identity.pid,
        tape=str(tape.path),
    )
