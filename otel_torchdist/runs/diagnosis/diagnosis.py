"""The diagnosis of a run: the last known state of its ranks, and the verdict on them."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from otel_torchdist.errors import TapeError
from otel_torchdist.judge.stall.findings.remote_calls import troubled_calls
from otel_torchdist.judge.stall.findings.watch import FindingWatch
from otel_torchdist.judge.verdict.past.last_moment import LastMoment
from otel_torchdist.judge.verdict.past.post_mortem import PostMortem, examine
from otel_torchdist.judge.verdict.rules import StallRules
from otel_torchdist.judge.verdict.verdict import Verdict
from otel_torchdist.judge.verdict.wording.sentence import describe_verdict, sentence
from otel_torchdist.judge.world.assembly import as_finished, mark_late_kills, with_other_parts, with_other_sizes
from otel_torchdist.judge.world.following.child_waits import ChildWaits
from otel_torchdist.judge.world.following.follower import TapeFollower
from otel_torchdist.judge.world.joining import joined
from otel_torchdist.judge.world.places import RankPlace, place_of
from otel_torchdist.judge.world.threads import RecordedStacks
from otel_torchdist.model.calls import OperationView
from otel_torchdist.model.rank_state.lives import RankLife
from otel_torchdist.model.reports.finding import Finding, FindingKind, JudgedWorld
from otel_torchdist.model.snapshot import RankView, life_in
from otel_torchdist.model.text import compress_ranks, name_ranks
from otel_torchdist.model.times import time_of_day
from otel_torchdist.node.job.bundled import BundledCopy
from otel_torchdist.node.job.kept_results import read_agents_verdict, read_kept_findings
from otel_torchdist.node.job.runs.lives import read_death
from otel_torchdist.node.job.runs.runs import Run
from otel_torchdist.node.processes.state import SILENT_NS
from otel_torchdist.runs.diagnosis.idle_lines import NOT_IDLE, IdleLines, idle_lines_of
from otel_torchdist.runs.diagnosis.moment import ReportedMoment
from otel_torchdist.system.progress import track
from otel_torchdist.tape.layout import LiveWord
from otel_torchdist.tape.reading.batch import Batch
from otel_torchdist.tape.reading.reader import TapeReader

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
        idle_lines: Lines at which all ranks are idle, outside operations. A finding if the idle time is unusually long.
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
    idle_lines: IdleLines = NOT_IDLE
    helpers: tuple[Diagnosis, ...] = ()

    @property
    def moment_ns(self) -> int:
        """The last moment, on this node's monotonic clock."""
        return self.post_mortem.moment.world.taken_ns

    @property
    def is_now(self) -> bool:
        """Whether that moment is now, because a rank is alive."""
        return self.post_mortem.moment.is_now and self.run.copy is None

    @property
    def has_problem(self) -> bool:
        """Whether there is a verdict or a finding, or a rank has failed or died, here or among the helpers."""
        post_mortem = self.post_mortem
        if post_mortem.has_verdict or post_mortem.has_deaths or self.stuck_calls or self.findings:
            return True
        return any(helper.has_problem for helper in self.helpers)

    @property
    def stuck_calls(self) -> tuple[str, ...]:
        """Reasons why remote procedure calls, open for `threshold_s` or longer, cannot go on; a sentence each."""
        return tuple(
            finding.kind.with_next_step(finding.text)
            for finding in troubled_calls(self.post_mortem.moment.world)
            if finding.kind is not FindingKind.DEAD and self.seconds_since(finding.since_ns) >= self.threshold_s
        )

    @property
    def has_long_wait(self) -> bool:
        """Whether a rank has waited in an operation for the threshold or longer, stalled or not."""
        waits = [operation.waiting_since_ns for account in self.ranks for operation in account.view.open]
        return any(self.seconds_since(since_ns) >= self.threshold_s for since_ns in waits if since_ns is not None)

    @property
    def verdict_text(self) -> str:
        """The verdict as a sentence, with the next step; '' without one."""
        return self._verdict_in(sentence)

    @property
    def verdict_description(self) -> str:
        """The verdict as a sentence, without the next step unless the text is from the agents; '' without a verdict."""
        return self._verdict_in(describe_verdict)

    def _verdict_in(self, wording: Callable[[Verdict, float], str]) -> str:
        post_mortem = self.post_mortem
        if post_mortem.of_agents is not None:
            return post_mortem.of_agents.text
        return wording(post_mortem.verdict, post_mortem.age_ns / 1e9) if post_mortem.verdict is not None else ""

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

    def seconds_since(self, monotonic_ns: int) -> float:
        """Return the seconds from a monotonic time to the last moment."""
        return max(self.moment_ns - monotonic_ns, 0) / 1e9


def diagnose_run(
    run: Run,
    rules: StallRules,
    observe: Callable[[TapeReader, Batch], None] | None = None,
    related_runs: Sequence[Run] = (),
) -> Diagnosis:
    """Read all tapes of a run to their ends and judge it.

    Args:
        run: The run.
        rules: Defines a stall.
        observe: Called with every batch of records.
        related_runs: Other runs to judge together with this one. Runs that share a world are judged as the largest of
            them. For other parts of the same launch, see `with_other_parts` and `with_other_sizes`.

    Raises:
        TapeError: None of its tapes can be read any more.
    """
    runs = (run, *related_runs)
    followers = {tape.identity.nonce: _follower_of(tape, each) for each in runs for tape in each.tapes}
    for follower in track(followers.values(), "Reading tapes", "tapes", len(followers)):
        _read_rest(follower, observe)
    now_ns = run.copy.taken_ns if run.copy is not None else _time_after_checks(followers.values())
    warnings: list[str] = []
    views_by_run = [_views_of(each, followers, observe, now_ns, warnings) for each in runs]
    worlds = joined({index: views for index, views in enumerate(views_by_run) if views})
    nonces = {view.nonce for view in views_by_run[0].values()}
    index = next((index for index, views in worlds.items() if nonces & {view.nonce for view in views.values()}), None)
    if index is None:
        raise TapeError(f"{run.place}: no tape of this run can be read: {'; '.join(warnings)}")
    ranks = with_other_sizes(with_other_parts(worlds))[index]
    run, views = runs[index], [view for _, view in sorted(mark_late_kills(ranks).items())]
    agents_verdict = read_agents_verdict(run.directory, run.run_id)
    post_mortem = examine(run.run_id, run.world_size, views, rules, now_ns, agents_verdict)
    tapes = {tape.identity.nonce: tape for each in runs for tape in each.tapes}
    idle_lines = idle_lines_of(post_mortem, rules, [tape.identity for tape in run.tapes])
    findings, past_findings = _findings(run, post_mortem, idle_lines)
    return Diagnosis(
        run=run,
        post_mortem=post_mortem,
        wall_offset_ns=views[0].wall_offset_ns,
        threshold_s=rules.threshold_s,
        ranks=tuple(_account(post_mortem.moment, view, tapes[view.nonce], run.copy) for view in views),
        warnings=tuple(warnings),
        findings=findings,
        past_findings=past_findings,
        idle_lines=idle_lines,
    )


def _follower_of(tape: TapeReader, run: Run) -> TapeFollower:
    bundled = run.copy.running.get(tape.identity.nonce) if run.copy is not None else None
    return TapeFollower(tape, bundled=bundled)


def _views_of(
    run: Run,
    followers: Mapping[int, TapeFollower],
    observe: Callable[[TapeReader, Batch], None] | None,
    now_ns: int,
    warnings: list[str],
) -> dict[int, RankView]:
    """Return the current ranks of a run, and add warnings about unreadable tapes."""
    views: dict[int, RankView] = {}
    for tape in run.tapes:
        follower = followers[tape.identity.nonce]
        _read_rest(follower, observe)  # a rank that has ended meanwhile has written its last records
        view = follower.view(now_ns)
        if view is None:
            warnings.append(f"{tape.path}: damaged")
            continue
        view = RecordedStacks(tape.path, tape.owner).shown_in(view)
        if view.alive:
            view = dataclasses.replace(view, twins=run.twins.get(view.rank, ()))
            if run.copy is None:
                child = ChildWaits(tape.identity, tape.owner).check(view.stacks, now_ns)
                view = dataclasses.replace(view, child=child)
        else:
            view = dataclasses.replace(view, death=read_death(tape.path, tape.owner))
        views[view.rank] = as_finished(view) if view.is_dead and run.has_ended_with_parent(tape) else view
        if _has_holes(tape) and (run.copy is None or run.copy.manifest.records is None):
            warnings.append(f"{tape.path}: {tape.lost} of its records are damaged or were never finished")
    return views


def _findings(run: Run, post_mortem: PostMortem, idle_lines: IdleLines) -> tuple[tuple[str, ...], tuple[str, ...]]:
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
    if idle_lines.is_long:  # its sentence covers the whole time
        past_notes = [
            note
            for note in past_notes
            if note.kind != FindingKind.IDLE.value or 0 < note.until_ns < idle_lines.since_ns
        ]
    current = [*(finding.sentence for finding in shown), *(note.text for note in past_notes if not note.until_ns)]
    if idle_lines.is_long:
        current.append(FindingKind.IDLE.with_next_step(idle_lines.text))
    return tuple(current), tuple(
        f"until {time_of_day(note.until_ns)}: {note.text}" for note in past_notes if note.until_ns
    )


def _read_rest(follower: TapeFollower, observe: Callable[[TapeReader, Batch], None] | None) -> None:
    for batch in follower.reader.poll_to_end():
        follower.observe(batch)
        if observe is not None:
            observe(follower.reader, batch)


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


def _account(moment: LastMoment, view: RankView, tape: TapeReader, copy: BundledCopy | None) -> RankAccount:
    place = f"{copy.place}/{tape.path.name}" if copy is not None and copy.place else str(tape.path)
    rank_view = moment.world.ranks[view.rank]
    position = place_of(rank_view, None, moment.world.taken_ns)
    return RankAccount(
        view=view,
        life=life_in(view),
        sign_ns=moment.signs[view.rank],
        stack=position if position.source.is_stack else None,
        pid=tape.identity.pid,
        tape=place,
    )
