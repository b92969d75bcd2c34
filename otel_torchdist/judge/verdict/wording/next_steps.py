"""The next step after a verdict, for the people who run the job.

Each kind of verdict has a row in `model/reports/verdict_kinds.py`. The functions of this module cover more specific
evidence.
"""

from __future__ import annotations

import signal

from otel_torchdist.judge.verdict.earlier_verdict import names_departed
from otel_torchdist.judge.verdict.launches import address_of, is_beyond_world_size, is_launch, is_path
from otel_torchdist.judge.verdict.roll_call import HOST
from otel_torchdist.judge.verdict.verdict import Doubt, Verdict
from otel_torchdist.judge.verdict.wording.calls import describe_frame
from otel_torchdist.judge.verdict.wording.places import lone_saver, name_checkpoint
from otel_torchdist.judge.world.mismatch import Field
from otel_torchdist.judge.world.places import PlaceSource
from otel_torchdist.model.rank_state.lives import CRASHES, SLEEPS_UNINTERRUPTIBLY, Death
from otel_torchdist.model.reports.verdict_kinds import VerdictKind
from otel_torchdist.model.text import MemberRank, name_ranks


def next_step(verdict: Verdict) -> str:
    """Return the next step after a verdict: for its evidence, else for its kind."""
    return _specific(verdict) or verdict.kind.traits.next_step.format(
        ranks=_ranks(verdict), rank=int(verdict.ranks[0]) if verdict.ranks else 0, place=_place(verdict)
    )


def _ranks(verdict: Verdict) -> str:
    return name_ranks(verdict.ranks) if verdict.ranks else "the ranks"


def _place(verdict: Verdict) -> str:
    place = verdict.places.get(verdict.ranks[0]) if verdict.ranks else None
    if place is not None and place.frame is not None:
        return describe_frame(place.frame)
    return "its last call" if len(verdict.ranks) == 1 else "their last calls"


def _specific(verdict: Verdict) -> str:
    """Return the step for the evidence; '' if it is no more specific than the kind."""
    match verdict.kind:
        case VerdictKind.MISMATCHED:
            return _of_mismatch(verdict)
        case VerdictKind.DEAD:
            return _of_launch(verdict) or _of_death(verdict)
        case VerdictKind.FROZEN:
            return _of_frozen(verdict)
        case VerdictKind.UNMATCHED | VerdictKind.ABSENT:
            return _of_absence(verdict)
        case VerdictKind.RENDEZVOUS | VerdictKind.TRANSPORT:
            return _of_launch(verdict)
        case VerdictKind.UNKNOWN:
            return _of_doubt(verdict.doubt)
        case VerdictKind.SHARED_GROUP | VerdictKind.CIRCULAR | VerdictKind.DEVICE | VerdictKind.STUCK:
            return ""
        case VerdictKind.UNREACHABLE:
            return "upgrade the agents of this job to one version" if verdict.versions else ""


def _of_mismatch(verdict: Verdict) -> str:
    mismatch = verdict.mismatch
    if mismatch is None:
        return ""
    if mismatch.field is Field.MEMBERS:
        return "create all groups on all ranks in the same order, including groups that a rank does not belong to"
    if mismatch.misfit is not None:
        misfit = mismatch.misfit
        return f"make rank {misfit.sender} send the size that rank {misfit.receiver} expects, or the other way round"
    return ""


def _of_launch(verdict: Verdict) -> str:
    roll, ranks, launch = verdict.roll, verdict.ranks, verdict.launch
    if not is_launch(roll):
        return ""
    address = address_of(roll, min(roll.waits))
    if launch.in_use:
        return f"end the process that listens at {next(iter(launch.in_use.values()))}, or choose another MASTER_PORT"
    if launch.left_over:
        return f"remove {next(iter(launch.left_over.values()))}, and give each launch a new file"
    if launch.sizes:
        return "start all ranks with the same WORLD_SIZE"
    if ranks and is_beyond_world_size(roll, ranks[0]):
        return "start as many ranks as WORLD_SIZE says, numbered from 0"
    if verdict.kind is VerdictKind.TRANSPORT:
        return f"remove {address}, and give each launch a new file" if is_path(address) else ""
    if {*ranks} & roll.waits.keys() and HOST in roll.waits:
        hosted = address_of(roll, HOST)
        return (
            f"give {_ranks(verdict)} the address {hosted or 'of rank 0'}, and check that it can be reached from there"
        )
    if verdict.kind is VerdictKind.RENDEZVOUS:
        where = f" and can reach {address}" if address else ""
        return f"check that {_ranks(verdict)} {'was' if len(ranks) == 1 else 'were'} started{where}"
    return ""


def _of_death(verdict: Verdict) -> str:
    first, ranks = verdict.first, _ranks(verdict)
    deaths = first.deaths.values() if first is not None else ()
    if first is not None and first.is_silence:
        return f"see whether the process of {ranks} still exists, and `dmesg` on its node"
    if any(death.oom for death in deaths):
        return f"have {ranks} use less memory, or raise the limit at which the kernel kills"
    if any(rank in verdict.failures for rank in verdict.ranks) or any(death.error for death in deaths):
        return f"read the traceback of {ranks} in the log{_where_raised(verdict)}"
    numbers = {death.signal for death in deaths}
    if numbers & {*CRASHES}:
        return f"look for the core dump of {ranks} (`coredumpctl`), or rerun with PYTHONFAULTHANDLER=1"
    if signal.SIGKILL in numbers:
        return f"find out who sent SIGKILL to {ranks}: `dmesg` for the kernel, else the scheduler or a person"
    return _of_exit(next(iter(deaths), None), ranks)


def _where_raised(verdict: Verdict) -> str:
    place = verdict.places.get(verdict.ranks[0])
    is_raised = place is not None and place.source is PlaceSource.EXCEPTION
    return f", and look at {_place(verdict)}" if is_raised else ""


def _of_exit(death: Death | None, ranks: str) -> str:
    if death is None or death.exit_code is None:
        return ""
    return f"read the log of {ranks} for the reason of exit code {death.exit_code}"


def _of_frozen(verdict: Verdict) -> str:
    place = verdict.places.get(verdict.ranks[0])
    match place.stopped if place is not None else "":
        case "T":
            return f"find out who stopped {_ranks(verdict)}, and let it continue (`kill -CONT`)"
        case "t":
            return f"detach the debugger from {_ranks(verdict)}, or let it continue"
        case state if state == SLEEPS_UNINTERRUPTIBLY:
            return f"check the disk or file system that {_ranks(verdict)} waits for (`dmesg`)"
        case _:
            return ""


def _of_absence(verdict: Verdict) -> str:
    ranks, place = _ranks(verdict), verdict.places.get(verdict.ranks[0])
    if names_departed(verdict):
        return f"find out why {ranks} left early, for example with fewer batches: all ranks must make the same calls"
    if verdict.kind is not VerdictKind.ABSENT:
        return ""
    if any(rank in verdict.failures for rank in verdict.ranks):
        return f"read the traceback of {ranks} in the log{_where_raised(verdict)}"
    saver = lone_saver(verdict)
    if saver is not None and saver.checkpoint is not None:
        checkpoint = name_checkpoint(saver.checkpoint.operation, saver.checkpoint.checkpoint)
        return f"check the storage of {checkpoint}; if it is only slow, announce the wait with expect_wait"
    if place is not None and place.child is not None:
        return (
            f"find out what process {place.child.pid} waits for (`py-spy dump --pid {place.child.pid}` if it is Python)"
        )
    if place is not None and place.remote is not None and place.remote.rank is not None:
        return f"find out what rank {place.remote.rank} does in {place.remote.call.function}"
    if isinstance(verdict.ranks[0], MemberRank):  # commands do not know it by this number
        return f"find out why {ranks} did not go on from {_place(verdict)}"
    return ""


def _of_doubt(doubt: Doubt | None) -> str:
    """Return the step that removes a doubt; '' if there is none."""
    match doubt:
        case Doubt.SILENT:
            return "find the ranks that do not report: were they started, and can their nodes' agents be reached?"
        case Doubt.RECORDS_LOST:
            return "raise OTEL_PYTHON_TORCHDIST_TAPE_RECORDS, so that records stay until they are read"
        case Doubt.ANY_SOURCE:
            return "find the rank that should send: name the source in recv, and the next verdict names the rank"
        case Doubt.CYCLE | Doubt.THREADS:
            return "see in `otel-torchdist diagnose` where the threads of these ranks are, and which waits for which"
        case Doubt.MEMBERS | Doubt.UNALIGNED | Doubt.NO_GROUP | None:
            return ""
