"""The ends of waits, ranks and rescues in words."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from otel_torchdist.judge.verdict.earlier_verdict import is_about_failure, names_departed
from otel_torchdist.judge.verdict.first_death import FirstDeath
from otel_torchdist.judge.verdict.giving_up import Deadline, all_given_up
from otel_torchdist.judge.verdict.roll_call import Standing
from otel_torchdist.judge.verdict.verdict import Verdict
from otel_torchdist.model.kinds import How
from otel_torchdist.model.names import AtTimeout
from otel_torchdist.model.rank_state.lives import BY_CGROUP, Death, name_signal
from otel_torchdist.model.rank_state.rescue import Rescue, RescueState
from otel_torchdist.model.reports.verdict_kinds import VerdictKind
from otel_torchdist.model.snapshot import RankView
from otel_torchdist.model.text import elapsed, name_ranks, seconds

# --- deadlines --------------------------------------------------------------------------------------------------------


def describe_deadline(deadline: Deadline, moment_ns: int) -> str:
    """Describe a deadline: `NCCL ends the process of rank 0 in 9 min 20 s (timeout 10 min)`.

    Args:
        deadline: The deadline.
        moment_ns: Monotonic time from which the remaining time counts.
    """
    backend, rank = deadline.backend, deadline.rank
    match deadline.at_timeout:
        case AtTimeout.RAISES:
            end = f"raises an error in rank {rank}"
        case AtTimeout.ENDS:
            end = f"ends the process of rank {rank}"
        case AtTimeout.ABORTS:
            end = f"aborts the operation of rank {rank}, not its process,"
        case AtTimeout.NOTHING | AtTimeout.UNKNOWN:
            return f"{backend} does not end this wait (TORCH_NCCL_ASYNC_ERROR_HANDLING is 0)"
    timeout = span_of_time(deadline.timeout_ns / 1e9)
    left_s = (deadline.at_ns - moment_ns) / 1e9
    if left_s <= 0:
        return f"{backend}'s timeout of {timeout} has passed in rank {rank}"
    return f"{backend} {end} in {span_of_time(left_s)} (timeout {timeout})"


def span_of_time(seconds: float) -> str:
    """Format a duration: `45 s`, `9 min 20 s`, `30 min`, `2 h 5 min`."""
    seconds = elapsed(seconds)
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f}".removesuffix(".0") + " s"
    size, unit, smaller, smaller_unit = (60, "min", 1, "s") if whole < 3600 else (3600, "h", 60, "min")
    rest = whole % size // smaller
    return f"{whole // size} {unit} {rest} {smaller_unit}" if rest else f"{whole // size} {unit}"


# --- deaths -----------------------------------------------------------------------------------------------------------


SHORTEST_LEAD_S = 0.001


def describe_deaths(verdict: Verdict) -> str:
    """Describe the first deaths: `rank 2 was killed by SIGKILL 0.12 s before the others ended`."""
    ranks, first = verdict.ranks, verdict.first
    if first is not None and first.is_silence:
        return f"{name_ranks(ranks)} fell silent"
    death = _common_death(verdict)
    verb = death or ("is dead" if len(ranks) == 1 else "are dead")
    return f"{name_ranks(ranks)} {verb}{_lead(first) if first is not None and death else ''}"


def describe_death(death: Death | None, failure: str = "") -> str:
    """Describe an end: `was killed by SIGKILL`; '' if unknown. An exception says more than an exit code.

    `death` is None until the process has ended, which may be long after it recorded its exception.
    """
    if death is not None and death.error and death.exit_code:
        return f"ended with exit code {death.exit_code} ({death.error})"
    if failure:
        return f"ended with {failure}"
    if death is None:
        return ""
    if death.signal:
        return f"was killed by {death.signal_name}{_after(death)}"
    return f"exited with code {death.exit_code}{_after(death, ',')}" if death.exit_code is not None else ""


def _after(death: Death, separator: str = "") -> str:
    """Describe a request before the end: ` 30.0 s after SIGTERM`."""
    if not death.asked or death.asked == death.signal:
        return ""
    return f"{separator} {seconds((death.at_ns - death.asked_ns) / 1e9)} after {name_signal(death.asked)}"


def describe_together(first: FirstDeath, are_all_seen: bool = True) -> str:
    """Describe deaths with a common cause: `all ranks that died did so within 0.012 s, …: no rank caused it`."""
    ends = {describe_death(death) for death in first.deaths.values()} - {""}
    if first.is_alone:
        died = ends.pop() if ends else "has died"
        alike = "" if first.is_open else ", as launchers end ranks"
        return f"rank {first.ranks[0]} {died}{alike}: nothing shows that it caused the end of the job"
    how = f", and the first of them {ends.pop()}" if len(ends) == 1 else ""
    here = "" if are_all_seen else " here"
    spread_s = max(first.spread_ns / 1e9, SHORTEST_LEAD_S)
    conclusion = "nothing shows which was first" if first.is_open else f"no rank{here} caused it"
    return f"all ranks{here} that died did so within {seconds(spread_s, 3)}{how}: {conclusion}"


def cause_states_death(verdict: Verdict) -> bool:
    """Return whether `describe_deaths` states how the named ranks died."""
    return bool(_common_death(verdict))


def describe_circumstances(verdict: Verdict) -> list[str]:
    """Describe out-of-memory kills, and the evidence for the order of deaths."""
    first = verdict.first
    if first is None:
        return []
    parts: list[str] = []
    if first.is_silence:
        whose, verb = ("its process", "was") if len(verdict.ranks) == 1 else ("their processes", "were")
        gil = "its GIL" if len(verdict.ranks) == 1 else "their GILs"
        parts.append(f"{whose} died or {verb} stopped, or native code did not release {gil}: nothing recorded which")
    cgroup = "its cgroup" if len(verdict.ranks) == 1 else "their cgroup"
    counted = {cgroup if death.oom == BY_CGROUP else "the node" for death in first.deaths.values() if death.oom}
    parts += [f"{who} counted an out-of-memory kill at that moment" for who in sorted(counted)]
    if first.is_inferred and first.deaths:
        parts.append("the order in which ranks died is inferred")
    return parts


def _common_death(verdict: Verdict) -> str:
    """Return how the named ranks died, if all died in the same way; '' if not, or if unknown."""
    first = verdict.first
    if first is None:
        return ""
    deaths = {_death_of(first, rank, verdict.failures.get(rank, "")) for rank in verdict.ranks}
    death = deaths.pop() if len(deaths) == 1 else ""
    return death.replace("was ", "were ", 1) if len(verdict.ranks) > 1 else death


def _death_of(first: FirstDeath, rank: int, failure: str) -> str:
    return describe_death(first.deaths.get(rank), failure)


def _lead(first: FirstDeath) -> str:
    if first.lead_ns is None:
        return ""
    lead_s = first.lead_ns / 1e9
    return f" {seconds(max(lead_s, SHORTEST_LEAD_S), 2 if lead_s >= 0.1 else 3)} before the others ended"


# --- timeouts ---------------------------------------------------------------------------------------------------------
# Timeouts that ended waits, and the ends that followed.


MAX_FOLLOWED: Final = 3


def describe_timeouts(views: Collection[RankView]) -> str:
    """Describe timeouts: `gloo gave up in ranks 1-2 after 20 s; rank 0 was then …`; '' if no rank gave up.

    Args:
        views: The ranks that shared the operation.
    """
    given_up = all_given_up(views)
    if not given_up:
        return ""
    parts: list[str] = []
    for backend in dict.fromkeys(wait.backend for wait in given_up):
        waits = [wait for wait in given_up if wait.backend == backend]
        longest_s = round(max(wait.after_ns for wait in waits) / 1e9, 1)
        parts.append(f"{backend} gave up in {_named(wait.rank for wait in waits)} after {span_of_time(longest_s)}")
    gave_up_ranks = {wait.rank for wait in given_up}
    others: dict[str, list[int]] = {}
    for view in views:
        end = "" if view.rank in gave_up_ranks else _later_end(view, given_up[0].at_ns)
        if end:
            others.setdefault(end, []).append(view.rank)
    parts += [_followed(end, ranks) for end, ranks in list(others.items())[:MAX_FOLLOWED]]
    return "; ".join(parts)


def _later_end(view: RankView, first_ns: int) -> str:
    """Describe how a rank that had not given up ended; '' if it is alive, or if unknown."""
    last = view.last
    if last is not None and last.record.how is How.FAILED and (last.record.completed_ns or 0) >= first_ns:
        return f"then failed with {last.failure or 'an exception'}"
    if not view.is_dead:
        return ""
    end = describe_death(view.end)
    verb, _, rest = end.partition(" ")
    return f"{verb} then {rest}" if verb == "was" else f"then {end}" if end else ""


def _followed(end: str, ranks: list[int]) -> str:
    return f"{_named(ranks)} {end.replace('was ', 'were ', 1) if len(ranks) > 1 else end}"


def _named(ranks: Iterable[int]) -> str:
    return name_ranks(tuple(sorted(ranks)))


# --- exits ------------------------------------------------------------------------------------------------------------


def describe_exit(verdict: Verdict, rank: int) -> str:
    """Describe an exit: `rank 2 exited with code 3`. The code is unknown until the process has ended."""
    return f"rank {rank} {_exit_of(verdict, rank)}"


def describe_departure(verdict: Verdict, operation: str, age: str) -> str:
    """Describe ranks that exited: `rank 2 exited with code 3 before all_reduce (…), which failed on ranks 0-1 with …`.

    Or `…, which has been blocked for 12.0 s` while the others wait; '' for any other verdict.

    Args:
        verdict: The verdict.
        operation: The operation, in words.
        age: The age of the first wait, in words.
    """
    if is_about_failure(verdict):
        failed = verdict.roll.ranks(Standing.FAILED)
        failures = sorted({verdict.failures[rank] for rank in failed if rank in verdict.failures})
        how = f" with {', '.join(failures)}" if failures else ""
        return f"{_departed(verdict)} before {operation}, which failed on {name_ranks(failed)}{how}"
    is_known = verdict.kind is VerdictKind.ABSENT and names_departed(verdict)
    return f"{_departed(verdict)} before {operation}, which has been blocked for {age}" if is_known else ""


def _departed(verdict: Verdict) -> str:
    exits = {_exit_of(verdict, rank) for rank in verdict.ranks}
    exit_text = exits.pop() if len(exits) == 1 else "have exited"
    return f"{name_ranks(verdict.ranks)} {exit_text.replace('has ', 'have ') if len(verdict.ranks) > 1 else exit_text}"


def _exit_of(verdict: Verdict, rank: int) -> str:
    code, asked = verdict.exit_codes.get(rank), verdict.asked.get(rank)
    after = f" after {name_signal(asked)}" if asked else ""
    if code is None:
        return f"has finished{after}"
    return f"exited with code {code}{after}" if code else f"has exited with code 0{after}"


# --- rescues ----------------------------------------------------------------------------------------------------------
# The rescues of a stall in words, and whether they fit together.


def _outcome(state: RescueState) -> str:
    match state:
        case RescueState.NONE:
            return "did not answer"
        case RescueState.RUNNING:
            return "had not ended"
        case RescueState.SAVED:
            return "has saved"
        case RescueState.IN_OPTIMIZER:
            return "refused, in the step of an optimizer"
        case RescueState.RAISED:
            return "failed, as its log shows"
        case RescueState.WENT_ON:
            return "went on meanwhile"
        case RescueState.TOO_LATE:
            return "took too long"
        case RescueState.DEAD:
            return "died before"


def describe_rescue(rescues: Mapping[int, Rescue], world_size: int) -> str:
    """Describe which ranks are rescued, and whether a restart can use the rescues.

    Args:
        rescues: By rank, on all nodes.
        world_size: Number of ranks of the run.

    Returns:
        `rescued: ranks 0-7 at step 1200`, or `rescued, but not usable: …` with the reasons.
    """
    steps: dict[int, list[int]] = defaultdict(list)
    others: dict[str, list[int]] = defaultdict(list)
    for rank in sorted({*range(world_size), *rescues}):
        rescue = rescues.get(rank)
        if rescue is not None and rescue.state is RescueState.SAVED:
            steps[rescue.step].append(rank)
        else:
            others["is not seen" if rescue is None else _outcome(rescue.state)].append(rank)
    # The step saved by most ranks comes first; the others are the problem.
    saved = [
        f"{name_ranks(ranks)} at step {step}" for step, ranks in sorted(steps.items(), key=lambda entry: -len(entry[1]))
    ]
    left = [f"{name_ranks(ranks)} {why}" for why, ranks in others.items()]
    title = "rescued" if len(steps) == 1 and not others else "rescued, but not usable" if steps else "not rescued"
    return f"{title}: {'; '.join([*saved, *left])}"
