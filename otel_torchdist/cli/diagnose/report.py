"""Prints a diagnosis for people. A terminal and a pipe get the same lines; only a terminal gets colors.

Ranks in the same state are shown together, because most ranks of a large job are in the same state.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from typing import Final

from rich.text import Text

from otel_torchdist.cli.output.rank_table import rows_at_terminal, style_of
from otel_torchdist.cli.output.terminal import print_lines
from otel_torchdist.cli.output.text import captured, fates, shown_callers
from otel_torchdist.judge.verdict.wording.calls import called_in, describe_frame, describe_operation
from otel_torchdist.judge.verdict.wording.causes import MAX_PARTIES, describe_link
from otel_torchdist.judge.verdict.wording.ends import (
    describe_death,
    describe_rescue,
    describe_timeouts,
    describe_together,
)
from otel_torchdist.model.calls import OperationView
from otel_torchdist.model.kinds import How
from otel_torchdist.model.rank_state.lives import RankLife
from otel_torchdist.model.rank_state.rescue import RescueState
from otel_torchdist.model.remote_calls import WorkerView
from otel_torchdist.model.reports.finding import split_next_step
from otel_torchdist.model.text import MemberRank, have, name_ranks, seconds
from otel_torchdist.model.times import day_and_time, length, time_of_day
from otel_torchdist.node.job.description import job_title
from otel_torchdist.node.job.description_file import read_description
from otel_torchdist.runs.diagnosis.diagnosis import Diagnosis, RankAccount
from otel_torchdist.runs.diagnosis.moment import ReportedMoment
from otel_torchdist.runs.diagnosis.timeout_hints import timeout_hints
from otel_torchdist.show.live.ranks import RankState

MAX_OPEN: Final = 8
"""Upper bound on the open operations shown of a rank."""
MAX_CALLS: Final = 4
"""Upper bound on the remote procedure calls shown of a rank, in each direction."""


def operation_lines(
    moment: ReportedMoment, still_open: Sequence[OperationView], last: OperationView | None
) -> Iterator[Text]:
    """Yield the open operations of a rank, and the last operation that it finished."""
    for operation in still_open[:MAX_OPEN]:
        yield Text(f"  {'in' if operation.record.is_blocking else 'open':5}  {_open(moment, operation)}")
        if operation.record.is_blocking and len(operation.path) > 1:
            yield Text(f"         from {shown_callers(operation.path)}")
    if len(still_open) > MAX_OPEN:
        yield Text(f"         and {len(still_open) - MAX_OPEN} more open operations")
    if last is not None:
        yield Text(f"  last   {_ended(moment, last)}")


def call_lines(moment: ReportedMoment, worker: WorkerView | None) -> Iterator[Text]:
    """Yield the open remote procedure calls of a worker, and its wait for all other workers."""
    if worker is None:
        return
    for name, since_ns in (("init_rpc", worker.joins_since_ns), ("rpc.shutdown", worker.leaves_since_ns)):
        if since_ns is not None:
            yield Text(f"  in     {name}, as {worker.name}, for {length(moment.seconds_since(since_ns))}")
    for calls, verb in ((worker.made, "calls"), (worker.served, "runs")):
        for call in calls[:MAX_CALLS]:
            called = called_in(call.call_site)
            where = f"for {call.peer or 'another worker'}" if call.is_served else f"on {call.peer or 'another worker'}"
            yield Text(f"  {verb:5}  {call.function} {where} for {length(moment.seconds_since(call.since_ns))}{called}")
        if len(calls) > MAX_CALLS:
            yield Text(f"         and {len(calls) - MAX_CALLS} more that it {verb}")


def _open(moment: ReportedMoment, operation: OperationView) -> str:
    since_ns = operation.waiting_since_ns or operation.record.entered_ns
    return f"{_description(operation)} for {length(moment.seconds_since(since_ns))}{_called(operation)}"


def _ended(moment: ReportedMoment, operation: OperationView) -> str:
    record = operation.record
    ended_ns = record.completed_ns or record.entered_ns
    if record.how is How.UNTRACKED:
        return f"{_description(operation)} called {moment.ago(record.entered_ns)}, over by now{_called(operation)}"
    how = f"failed with {operation.failure or 'an exception'}" if record.how is How.FAILED else "ended"
    lasted = f"after {length((ended_ns - record.entered_ns) / 1e9)}"
    return f"{_description(operation)} {how} {moment.ago(ended_ns)}, {lasted}{_called(operation)}"


def _description(operation: OperationView) -> str:
    described = describe_operation(operation.name, operation.group, operation.operation_id, operation.label)
    group = operation.group
    if group is None or operation.operation_id.channel.is_point_to_point:
        return described
    return f"{described} of {name_ranks(sorted(group.members))}"


def _called(operation: OperationView) -> str:
    return called_in(operation.call_site)


VERDICT: Final = "verdict"


LABEL_WIDTH: Final = 9
"""Columns of the labels, to which continuation lines are indented."""


def print_report(diagnosis: Diagnosis) -> None:
    """Print a diagnosis."""
    print_lines(lines_of(diagnosis), LABEL_WIDTH)


def lines_of(diagnosis: Diagnosis) -> Iterator[Text]:
    """Yield the report."""
    yield from _heading(diagnosis)
    yield Text()
    yield from _verdict(diagnosis)
    states = _states(diagnosis)
    for group in groups_in_same_state(diagnosis.ranks, {*diagnosis.post_mortem.named}):
        yield Text()
        yield from _rank(diagnosis, group, states)
    if diagnosis.post_mortem.unseen:
        yield Text()
        verb = "has" if len(diagnosis.post_mortem.unseen) == 1 else "have"
        yield Text(f"{name_ranks(diagnosis.post_mortem.unseen)}  unknown: {verb} no tape on this node", style="yellow")
    for helper in diagnosis.helpers:
        yield Text()
        yield from _helper(helper)


def _heading(diagnosis: Diagnosis) -> Iterator[Text]:
    run = diagnosis.run
    members = [account for account in diagnosis.ranks if not isinstance(account.view.rank, MemberRank)]
    others = len(diagnosis.ranks) - len(members)
    in_their_groups = f", and {others} process{'es' * (others != 1)} of other runs in their groups" if others else ""
    of = f", helper processes of run {run.helps.label}" if run.helps is not None else ""
    yield Text.assemble(
        (f"run {run.label}" if run.label else "a run without an id", "bold"),
        f"{of}, started {day_and_time(run.begun_ns)} on {run.host}, "
        f"{len(members)} of {run.world_size} ranks report{in_their_groups}",
    )
    yield Text(run.place, style="dim")
    described = read_description(run.tapes[0].path)
    if described is not None and (title := job_title(described.job)):
        yield Text(title, style="dim")
    how = captured(tape.identity for tape in run.tapes)
    if how:
        yield Text(how, style="dim")
    moment_ns = diagnosis.wall_ns(diagnosis.moment_ns)
    when = f"as of now, {time_of_day(moment_ns)}"
    if not diagnosis.is_now:
        ago = length(max(time.time_ns() - moment_ns, 0) / 1e9)
        moment = "the bundle" if diagnosis.post_mortem.moment.is_now else "the last sign of life"
        when = f"as of {moment}, {day_and_time(moment_ns)}, {ago} ago"
    by_last_sign = sorted(diagnosis.ranks, key=lambda account: account.sign_ns)
    yield Text(f"{when}: {'; '.join(fates(account.view for account in by_last_sign))}")


def _helper(helper: Diagnosis) -> Iterator[Text]:
    """Describe helper processes of these ranks. Details are under the id of the helpers' own run."""
    label = helper.run.label
    yield Text.assemble(
        (f"helper processes of {name_ranks(helper.run.ranks)}", "bold"), f", run {label or 'without an id'}: ",
        "; ".join(fates(account.view for account in helper.ranks)),
    )  # fmt: skip
    if helper.post_mortem.has_verdict:
        yield from _verdict(helper)
    if helper.has_problem and label:
        yield Text(f"  what each was doing last: otel-torchdist diagnose {label}")


def _verdict(diagnosis: Diagnosis) -> Iterator[Text]:
    title, text, *more = conclusion_of(diagnosis)
    description, next_step = split_next_step(text)
    yield Text.assemble((title, "bold white on red" if title == VERDICT else "bold"), f"  {description}")
    yield from (Text(f"  and    {line}") for line in more)
    yield from _next_step(next_step)
    for stuck_call in diagnosis.stuck_calls:
        yield from with_next_step(Text("  and    "), stuck_call)
    if diagnosis.post_mortem.verdict is not None:
        yield from (Text(f"  hint   {hint}", style="dim") for hint in timeout_hints(diagnosis.post_mortem.verdict))
    for finding in diagnosis.findings:
        yield from with_next_step(Text.assemble(("finding", "bold"), "  "), finding)
    yield from (Text(f"finding  {finding}", style="dim") for finding in diagnosis.past_findings)


def with_next_step(label: Text, text: str) -> Iterator[Text]:
    """Yield the text of a verdict or finding behind its label, and the step to take in a row of its own."""
    description, next_step = split_next_step(text)
    yield label.append(description, style="not bold")
    yield from _next_step(next_step)


def _next_step(step: str) -> Iterator[Text]:
    if step:
        yield Text.assemble("  ", ("next", "bold"), f"   {step}")


def _rescue(diagnosis: Diagnosis) -> list[str]:
    """Return a sentence on the rescued state, if a rescue was requested."""
    rescues = {account.view.rank: account.view.rescued for account in diagnosis.ranks}
    was_begun = any(rescue.state not in (RescueState.NONE, RescueState.DEAD) for rescue in rescues.values())
    return [describe_rescue(rescues, diagnosis.run.world_size)] if was_begun else []


def conclusion_of(diagnosis: Diagnosis) -> list[str]:
    """Return the conclusion: `VERDICT` or another title, the sentence, and further lines."""
    post_mortem = diagnosis.post_mortem
    off_ns = post_mortem.moment.world.switched_off_ns
    if off_ns:
        said = post_mortem.of_agents
        before = () if said is None else (f"the agents' verdict before, at {time_of_day(said.at_ns)}: {said.text}",)
        unknown = f"recording was switched off {diagnosis.when(off_ns)}: later operations are unknown"
        return ["no verdict", unknown, *before]
    if post_mortem.ended_together is not None:
        label = "no verdict" if post_mortem.ended_together.is_alone else "ended together"
        return [label, describe_together(post_mortem.ended_together, not post_mortem.unseen)]
    if post_mortem.has_verdict:
        hung = () if post_mortem.hung_ns is None else (_how_it_ended(diagnosis, post_mortem.hung_ns),)
        return [VERDICT, diagnosis.verdict_text, *hung, *_more_lines(diagnosis), *_rescue(diagnosis)]
    if post_mortem.is_undecided:
        return ["undecided", diagnosis.undecided_text]
    idle_lines = diagnosis.idle_lines
    if idle_lines.text and not idle_lines.is_long:
        return ["no verdict", idle_lines.text]
    waited = "longer than allowed" if diagnosis.has_long_wait else f"{diagnosis.threshold_s:g} s"
    return ["no verdict", f"no operation was open for {waited}, and no rank was left behind in one"]


def _how_it_ended(diagnosis: Diagnosis, hung_ns: int) -> str:
    how = describe_timeouts([account.view for account in diagnosis.ranks])
    return how or f"the job was ended while it hung, after {seconds(hung_ns / 1e9)}"


def _more_lines(diagnosis: Diagnosis) -> Iterator[str]:
    """Yield the verdict's source, and parties of a mismatch and ranks of a circle that do not fit into the sentence."""
    if diagnosis.post_mortem.of_agents is not None:
        yield f"reported by the agents of all nodes, as of {time_of_day(diagnosis.post_mortem.of_agents.at_ns)}"
    verdict = diagnosis.post_mortem.verdict
    if verdict is None:
        return
    if verdict.mismatch is not None:
        mismatch = verdict.mismatch
        for value, ranks in mismatch.parties[MAX_PARTIES + mismatch.has_majority :]:
            yield f"{name_ranks(ranks)} {have(ranks)} {mismatch.field.value} {value}"
    for link in verdict.circle[MAX_PARTIES:]:
        yield f"rank {link.rank} in {describe_link(link)}"


def _states(diagnosis: Diagnosis) -> Mapping[int, RankState]:
    """Return the states of live ranks, in the words of `watch`; empty after the end of the run."""
    if not diagnosis.post_mortem.moment.is_now:
        return {}
    post_mortem = diagnosis.post_mortem
    rows = rows_at_terminal(post_mortem.moment.world, post_mortem.verdict, diagnosis.threshold_s)
    return {row.rank: RankState(row.state) for row in rows}


def _rank(diagnosis: Diagnosis, group: Sequence[RankAccount], states: Mapping[int, RankState]) -> Iterator[Text]:
    """Describe the first of several ranks in the same state."""
    account = group[0]
    view = account.view
    ended = RankState(account.life.value)
    state = states.get(view.rank, ended) if account.life is RankLife.RUNNING else ended
    if view.switched_off_ns:
        state = RankState.SWITCHED_OFF
    shown = state.value + (f" with {view.failure}" if view.failure else "")
    if len(group) > 1:
        ranks = [member.view.rank for member in group]
        yield Text.assemble((name_ranks(ranks), "bold"), f"  {len(ranks)} ranks do the same; the longest wait:")
    ending = describe_death(view.end) if view.end is not None else ""
    death = f"  {ending} {diagnosis.when(view.death.at_ns)}" if view.death is not None and ending else ""
    yield Text.assemble(
        (f"rank {view.rank}", "bold"), "  ", (shown, style_of(state)),
        f"  step {view.step}  last sign of life {diagnosis.when(account.sign_ns)}  pid {account.pid}{death}",
    )  # fmt: skip
    yield from operation_lines(diagnosis, account.open, view.last)
    yield from call_lines(diagnosis, view.worker)
    if account.stack is not None and account.stack.frame is not None and view.stacks is not None:
        written = diagnosis.when(view.stacks.asked_ns)
        how = ", by a signal while the GIL was held" if view.stacks.by_signal else ""
        yield Text(f"  stack  in {describe_frame(account.stack.frame)}, written {written}{how}")


SHOWN_EACH: Final = 8
"""Largest number of ranks that a report shows separately."""


def groups_in_same_state(ranks: Sequence[RankAccount], named: Collection[int]) -> list[list[RankAccount]]:
    """Group ranks in the same state, the longest wait first. Groups that the verdict names come first."""
    ordered = sorted(ranks, key=lambda account: (account.view.rank not in named, account.view.rank))
    if len(ordered) <= SHOWN_EACH:
        return [[account] for account in ordered]
    groups: dict[Hashable, list[RankAccount]] = {}
    for account in ordered:
        is_named = account.view.rank in named
        groups.setdefault((is_named, *_state_of(account)), []).append(account)
    return [sorted(group, key=_waiting_since_ns) for group in groups.values()]


def _state_of(account: RankAccount) -> tuple[Hashable, ...]:
    """Return the state of a rank: everything that a report shows about it except times and process id."""
    view = account.view
    frame = account.stack.frame if account.stack is not None else None
    waits = tuple((_operation_state(operation), operation.record.is_blocking) for operation in account.open)
    last = (_operation_state(view.last), view.last.failure, view.last.record.how) if view.last is not None else None
    ending = describe_death(view.death) if view.death is not None else ""
    return account.life, view.failure, ending, view.step, waits, last, frame, _calls(view.worker)


def _calls(worker: WorkerView | None) -> Hashable:
    if worker is None:
        return None
    return worker.joins_since_ns is None, worker.leaves_since_ns is None, tuple(call.text for call in worker.calls)


def _operation_state(operation: OperationView) -> tuple[Hashable, ...]:
    return operation.name, operation.operation_id, operation.call_site


def _waiting_since_ns(account: RankAccount) -> tuple[int, int]:
    opened = [operation.waiting_since_ns for operation in account.open]
    since = [since_ns for since_ns in opened if since_ns is not None]
    return min(since, default=1 << 63), account.view.rank
