"""The launch of a world in words: missing or misled ranks, waiting ranks, and addresses."""

from __future__ import annotations

from typing import Final

from otel_torchdist.judge.verdict.launches import address_of, is_beyond_world_size, is_launch, is_path
from otel_torchdist.judge.verdict.roll_call import HOST, Standing
from otel_torchdist.judge.verdict.verdict import Verdict
from otel_torchdist.model.names import INIT_PROCESS_GROUP
from otel_torchdist.model.reports.verdict_kinds import VerdictKind
from otel_torchdist.model.text import have, name_ranks

MAX_TWINS: Final = 3


def has_launch_clause(verdict: Verdict) -> bool:
    """Return whether `describe_launch` applies: the named ranks are missing in a launch, or use another address."""
    is_missing = (
        bool(verdict.ranks)
        and not verdict.launch.sizes
        and {*verdict.ranks} <= {*verdict.roll.unseen, *verdict.roll.waits}
    )
    return verdict.kind is VerdictKind.RENDEZVOUS and is_launch(verdict.roll) and is_missing


def describe_launch(verdict: Verdict, age: str, line: str) -> str:
    """Describe the ranks that have not started, or that look for a store at a wrong address.

    Args:
        verdict: A verdict for which `has_launch_clause` returns True.
        age: The age of the first wait, in words.
        line: Call site of the waiting ranks, in words; '' if unknown.
    """
    called = f"in {INIT_PROCESS_GROUP}" + (f", called in {line}" if line else "")
    if is_beyond_world_size(verdict.roll, verdict.ranks[0]):
        address = address_of(verdict.roll, verdict.ranks[0])
        wait = f"{have(verdict.ranks)} waited {f'at {address} ' if address else ''}for {age}"
        return f"{_no_such_rank(verdict)}: {'it' if len(verdict.ranks) == 1 else 'they'} {wait}, {called}"
    if verdict.ranks[0] in verdict.roll.waits:
        return _cut_off(verdict, age)
    waiting, missing = sorted(verdict.roll.waits), f"{name_ranks(verdict.ranks)} {have(verdict.ranks)}"
    addresses = {address_of(verdict.roll, rank) for rank in waiting}
    have_waited = f"{len(waiting)} of {verdict.members} ranks {have(waiting)} waited for {age}, {called}"
    if len(addresses) > 1 or addresses == {""}:
        return f"{missing} not come: {have_waited}"
    return f"{missing} not come to {addresses.pop()}, where {have_waited}"


def describe_failed_launch(verdict: Verdict, age: str) -> str:
    """Describe the ranks that failed in a launch; '' if other ranks are the cause."""
    roll, ranks, address = verdict.roll, verdict.ranks, next(iter(verdict.launch.in_use.values()), "")
    failure = verdict.failures.get(ranks[0], "") if ranks else ""
    named = f" ({failure})" if failure else ""
    blocked = f", and {INIT_PROCESS_GROUP} has been blocked for {age}" if roll.ranks(Standing.WAITING) else ""
    if address:
        return f"{name_ranks(ranks)} could not host the store: {address} is in use{named}{blocked}"
    file = next(iter(verdict.launch.left_over.values()), "")
    if file and is_launch(roll):
        leads = f"the file {file} leads {name_ranks(ranks)} to ranks that are not there{named}"
        return f"{leads}: it is left from an earlier launch, as it seems{blocked}"
    if ranks and is_beyond_world_size(roll, ranks[0]):
        return f"{_no_such_rank(verdict)}: {'it' if len(ranks) == 1 else 'they'} failed in {INIT_PROCESS_GROUP}{named}"
    return ""


def describe_sizes(verdict: Verdict) -> str:
    """Describe the world size given to each rank; '' if all sizes are equal."""
    parties: dict[int, list[int]] = {}
    for rank, size in sorted(verdict.launch.sizes.items()):
        parties.setdefault(size, []).append(rank)
    rarest_first = sorted(parties.items(), key=lambda party: (len(party[1]), party[0]))
    given = [f"{name_ranks(ranks)} {have(ranks)} WORLD_SIZE={size}" for size, ranks in rarest_first]
    addresses = {address_of(verdict.roll, rank) for rank in verdict.roll.waits} - {""}
    where = f", at {addresses.pop()}" if len(addresses) == 1 else ""
    return f"{' and '.join(given)}{where}" if given else ""


def _no_such_rank(verdict: Verdict) -> str:
    """Describe a rank beyond the world size: `there is no rank 2 in a world of 2 (WORLD_SIZE)`."""
    size = len(verdict.group.members) if verdict.group is not None else 0
    verb = "is" if len(verdict.ranks) == 1 else "are"
    return f"there {verb} no {name_ranks(verdict.ranks)} in a world of {size} (WORLD_SIZE)"


def _cut_off(verdict: Verdict, age: str) -> str:
    roll, ranks = verdict.roll, verdict.ranks
    named, address, hosted = name_ranks(ranks), address_of(roll, ranks[0]), address_of(roll, HOST)
    if address == hosted:
        store = f"the store at {address}, where rank {HOST} waits, for {age}"
        return f"{named} {have(ranks)} not reached {store}, in {INIT_PROCESS_GROUP}"
    looks = f"{named} {'looks' if len(ranks) == 1 else 'look'} for the store at {address}"
    others = [rank for rank in sorted(roll.waits) if address_of(roll, rank) == hosted]
    wait = f"{name_ranks(others)} {'waits' if len(others) == 1 else 'wait'} at {hosted}"
    return f"{looks}, but {wait}: {INIT_PROCESS_GROUP} has been blocked for {age}"


def describe_file(verdict: Verdict) -> list[str]:
    """Describe a rendezvous file that may be left from an earlier launch, if all ranks wait and none proceeds."""
    address = address_of(verdict.roll, min(verdict.roll.waits)) if is_launch(verdict.roll) else ""
    is_file = verdict.kind is VerdictKind.TRANSPORT and is_path(address)
    return [f"{address} may be left from an earlier launch: each needs a new file"] if is_file else []


def describe_meeting(verdict: Verdict) -> str:
    """Describe the address where ranks wait in a launch: ` at node0:29500`; '' if there is not exactly one."""
    addresses = set(_parties(verdict))
    return f" at {addresses.pop()}" if len(addresses) == 1 else ""


def describe_stale_store(verdict: Verdict) -> list[str]:
    """Describe a launch that failed although no rank had ended: its store may hold stale addresses."""
    is_alone = (
        verdict.kind is VerdictKind.DEAD and is_launch(verdict.roll) and {*verdict.ranks} <= {*verdict.launch.cut_off}
    )
    return ["nobody answers at an address in the store, which may be left from an earlier start"] if is_alone else []


def describe_twins(verdict: Verdict) -> list[str]:
    """Describe rank numbers claimed by several processes."""
    return [
        f"{len(pids)} processes claim to be rank {rank} (pids {', '.join(map(str, pids))})"
        for rank, pids in sorted(verdict.twins.items())[:MAX_TWINS]
    ]


def describe_addresses(verdict: Verdict) -> list[str]:
    """Describe the address of each waiting rank, if addresses differ and the cause does not state them."""
    parties = _parties(verdict)
    if len(parties) < 2 or any(rank in verdict.roll.waits for rank in verdict.ranks):
        return []
    return [
        ", ".join(
            f"{name_ranks(ranks)} {'waits' if len(ranks) == 1 else 'wait'} at {address}"
            for address, ranks in parties.items()
        )
    ]


def _parties(verdict: Verdict) -> dict[str, list[int]]:
    """Return the ranks that wait in a launch by their address, where known."""
    roll = verdict.roll
    parties: dict[str, list[int]] = {}
    for rank in sorted(roll.waits) if is_launch(roll) else ():
        parties.setdefault(address_of(roll, rank), []).append(rank)
    parties.pop("", None)
    return parties
