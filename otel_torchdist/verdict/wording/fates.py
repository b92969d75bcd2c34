"""How ranks died, in words."""

from __future__ import annotations

from otel_torchdist.model.lives import BY_CGROUP, Death, name_signal
from otel_torchdist.naming import name_ranks
from otel_torchdist.units import seconds
from otel_torchdist.verdict.first_death import FirstDeath
from otel_torchdist.verdict.model import Verdict

SHORTEST_LEAD_S = 0.001


def describe_deaths(verdict: Verdict) -> str:
    """`rank 2 was killed by SIGKILL 0.12 s before the others ended`."""
    ranks, first = verdict.ranks, verdict.first
    if first is not None and first.is_silence:
        return f"{name_ranks(ranks)} fell silent"
    way = _common_way(verdict)
    verb = way or ("is dead" if len(ranks) == 1 else "are dead")
    return f"{name_ranks(ranks)} {verb}{_lead(first) if first is not None and way else ''}"


def describe_way(death: Death | None, failure: str = "") -> str:
    """`was killed by SIGKILL`; '' if not known. An exception that ended the rank is more specific than its code.

    A process may take long to end after it has recorded its exception: until then there is no death.
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
    """` 30.0 s after SIGTERM`."""
    if not death.asked or death.asked == death.signal:
        return ""
    return f"{separator} {seconds((death.at_ns - death.asked_ns) / 1e9)} after {name_signal(death.asked)}"


def describe_together(first: FirstDeath, are_all_seen: bool = True) -> str:
    """`all ranks that died did so within 0.012 s, and the first of them was killed by SIGTERM: no rank caused it`."""
    ways = {describe_way(death) for death in first.deaths.values()} - {""}
    how = f", and the first of them {ways.pop()}" if len(ways) == 1 else ""
    here = "" if are_all_seen else " here"
    spread_s = max(first.spread_ns / 1e9, SHORTEST_LEAD_S)
    conclusion = "nothing shows which was first" if first.is_open else f"no rank{here} caused it"
    return f"all ranks{here} that died did so within {seconds(spread_s, 3)}{how}: {conclusion}"


def cause_states_death(verdict: Verdict) -> bool:
    """Whether `describe_deaths` states how the ranks that the verdict names died."""
    return bool(_common_way(verdict))


def describe_circumstances(verdict: Verdict) -> list[str]:
    """Whether memory ran out, and how the order of the deaths is known."""
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


def _common_way(verdict: Verdict) -> str:
    """How all ranks that a verdict names died; '' if that differs, or is not known for all."""
    first = verdict.first
    if first is None:
        return ""
    ways = {_way(first, rank, verdict.failures.get(rank, "")) for rank in verdict.ranks}
    way = ways.pop() if len(ways) == 1 else ""
    return way.replace("was ", "were ", 1) if len(verdict.ranks) > 1 else way


def _way(first: FirstDeath, rank: int, failure: str) -> str:
    return describe_way(first.deaths.get(rank), failure)


def _lead(first: FirstDeath) -> str:
    if first.lead_ns is None:
        return ""
    lead_s = first.lead_ns / 1e9
    return f" {seconds(max(lead_s, SHORTEST_LEAD_S), 2 if lead_s >= 0.1 else 3)} before the others ended"
