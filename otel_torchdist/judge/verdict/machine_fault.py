"""Decides whether a verdict blames a machine, so that it may be drained: the only place that does.

The kind of the verdict decides first, by its row in `model/reports/verdict_kinds.py`. Without evidence of the machine,
nothing is ever shown: at most, the verdict counts as an incident of one machine.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from otel_torchdist.judge.verdict.first_death import FirstDeath
from otel_torchdist.model.rank_state.lives import SLEEPS_UNINTERRUPTIBLY
from otel_torchdist.model.rank_state.symptoms import (
    MACHINE_XIDS,
    XID_MEANINGS,
    Symptom,
    SymptomKind,
    SymptomSource,
)
from otel_torchdist.model.reports.verdict_kinds import MachineBlame, VerdictKind
from otel_torchdist.model.snapshot import RankView, WorldSnapshot
from otel_torchdist.model.text import compress_ranks, readable

MAX_MACHINES: Final = 16
"""Maximum number of machines that a verdict blames. More of them have a common cause that is none of theirs."""
_MAX_DETAIL: Final = 64
_OF_A_MACHINE: Final = (signal.SIGKILL, signal.SIGBUS)
"""Signals that end a process without its doing: other crashes are mostly the program's."""


@dataclass(frozen=True, slots=True)
class FaultyMachine:
    """A machine that a verdict blames.

    Attributes:
        host: Its host name.
        ranks: The named ranks on it, ascending.
        evidence: The evidence in words, strongest first, such as `GPU of rank 3: Xid 79 (it has fallen off the bus)`;
            empty if nothing of the machine shows the fault.
    """

    host: str
    ranks: tuple[int, ...]
    evidence: tuple[str, ...] = ()

    @property
    def is_shown(self) -> bool:
        """Whether evidence of the machine shows the fault. If not, the verdict only counts as an incident of it."""
        return bool(self.evidence)


def faulty_machines(
    kind: VerdictKind, ranks: Iterable[int], first: FirstDeath | None, since_ns: int, world: WorldSnapshot
) -> tuple[FaultyMachine, ...]:
    """Return the machines that a verdict blames, by host name: those with evidence, else at most one without.

    Args:
        kind: Kind of the verdict.
        ranks: The named ranks; for a verdict that names none, the members of the operation.
        first: See `Verdict`.
        since_ns: When the first rank began to wait.
        world: The snapshot.
    """
    match kind.traits.machine:
        case MachineBlame.NEVER:
            return ()
        case MachineBlame.SHOWN:
            return _shown(kind, ranks, since_ns, world)
        case MachineBlame.COUNTED:
            named = tuple(ranks)
            return _shown(kind, named, since_ns, world) or _suspected(named, first, since_ns, world)


def _shown(kind: VerdictKind, ranks: Iterable[int], since_ns: int, world: WorldSnapshot) -> tuple[FaultyMachine, ...]:
    found: dict[str, dict[int, list[str]]] = {}
    for rank in ranks:
        view = world.ranks.get(rank)
        evidence = _evidence(kind, view, since_ns) if view is not None and view.host else []
        if view is not None and evidence:
            found.setdefault(view.host, {})[rank] = evidence
    if len(found) > MAX_MACHINES:
        return ()
    return tuple(
        FaultyMachine(
            host, tuple(sorted(by_rank)), tuple(dict.fromkeys(text for texts in by_rank.values() for text in texts))
        )
        for host, by_rank in sorted(found.items())
    )


def _evidence(kind: VerdictKind, view: RankView, since_ns: int) -> list[str]:
    """Return the evidence that the machine of a rank is faulty, in words."""
    recent = [symptom for symptom in view.symptoms if symptom.is_recent(since_ns)]
    sources = kind.traits.symptoms
    shown = sorted((symptom for symptom in recent if symptom.kind.source in sources), key=_order)
    texts = [text for symptom in shown if (text := _fault(symptom, view.rank))]
    waits_for_storage = any(symptom.kind.source is SymptomSource.STORAGE for symptom in recent)
    if kind is VerdictKind.FROZEN and _sleeps(view) and not waits_for_storage:
        texts.append(f"rank {view.rank}: in uninterruptible sleep (state D)")
    return texts


def _order(symptom: Symptom) -> int:
    return list(SymptomKind).index(symptom.kind)


def _fault(symptom: Symptom, rank: int) -> str:
    """Return the fault of the machine that a symptom shows, in words; '' if programs or load cause such symptoms."""
    match symptom.kind:
        case SymptomKind.GPU_LOST:
            return f"GPU of rank {rank}: lost, the driver does not reach it"
        case SymptomKind.XID:
            meaning = XID_MEANINGS.get(symptom.xid, "")
            return f"GPU of rank {rank}: Xid {symptom.xid} ({meaning})" if symptom.xid in MACHINE_XIDS else ""
        case SymptomKind.ECC:
            return f"GPU of rank {rank}: {symptom.value:.0f} uncorrected memory error(s)"
        case SymptomKind.LINK_DOWN:
            return f"link {readable(symptom.detail, _MAX_DETAIL)} of the node went down"
        case SymptomKind.CGROUP_MEMORY | SymptomKind.NODE_MEMORY | SymptomKind.STORAGE | SymptomKind.THROTTLED:
            return ""


def _suspected(
    ranks: tuple[int, ...], first: FirstDeath | None, since_ns: int, world: WorldSnapshot
) -> tuple[FaultyMachine, ...]:
    """Return the machine of which the verdict is an incident; none if ranks on several hosts have a common cause."""
    views = [world.ranks[rank] for rank in ranks if rank in world.ranks]
    hosts = {view.host for view in views}
    if len(views) != len(ranks) or len(hosts) != 1 or hosts == {""}:
        return ()
    if not all(_may_be_the_machine(view, first, since_ns) for view in views):
        return ()
    return (FaultyMachine(hosts.pop(), tuple(sorted(ranks))),)


def _may_be_the_machine(view: RankView, first: FirstDeath | None, since_ns: int) -> bool:
    """Return whether nothing shows that the program, a person or the scheduler is at fault on a named rank."""
    if any(symptom.xid and symptom.is_recent(since_ns) for symptom in view.symptoms):
        return False  # an Xid that programs cause, or that a restart cures
    if first is None:
        return view.stopped is None or _sleeps(view)  # a signal or a debugger may stop it, too
    death = first.deaths.get(view.rank)
    if death is None or first.together or first.may_follow or death.oom or death.asked or death.with_others:
        return False
    return death.signal in _OF_A_MACHINE


def _sleeps(view: RankView) -> bool:
    return view.stopped is not None and view.stopped.state == SLEEPS_UNINTERRUPTIBLY


def describe_machines(machines: Iterable[FaultyMachine]) -> str:
    """Return why machines are blamed, in one line; '' if none is."""
    return "; ".join(
        f"{machine.host}: {', '.join(machine.evidence)}"
        if machine.is_shown
        else f"{machine.host}: no evidence of the machine, ranks {compress_ranks(machine.ranks)}"
        for machine in machines
    )
