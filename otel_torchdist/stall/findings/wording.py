"""Findings as sentences, those without a stall: calls that differ, slow ranks, values, checkpoints, shared groups."""

from __future__ import annotations

from otel_torchdist.model.rank_values import ParameterRange
from otel_torchdist.model.snapshot import WorldSnapshot
from otel_torchdist.naming import have, name_ranks
from otel_torchdist.stall.findings.checkpoints import SaveFailed
from otel_torchdist.stall.findings.events import (
    CallsStuck,
    Finding,
    IdleFound,
    MismatchFound,
    ProblemFound,
    SlowFound,
    ValuesFound,
)
from otel_torchdist.stall.findings.shared_groups import GroupShared
from otel_torchdist.stall.findings.values import Diverged, NonFinite
from otel_torchdist.units import passed
from otel_torchdist.verdict.wording.checkpoints import name_checkpoint
from otel_torchdist.verdict.wording.frames import called_in
from otel_torchdist.verdict.wording.idle import describe_idle
from otel_torchdist.verdict.wording.machine import describe_slow
from otel_torchdist.verdict.wording.operations import describe_operation
from otel_torchdist.verdict.wording.sentence import describe_mismatch, describe_sharing


def describe_finding(event: Finding) -> str:
    """Describe what was found without a stall, and what it costs."""
    if isinstance(event, MismatchFound):
        return f"{describe_mismatch(event.mismatch, event.group)}; it did not hang, but results may be wrong"
    if isinstance(event, SlowFound):
        ranks = event.part.ranks
        return event.part.text + (_of_machine(event.world, ranks[0]) if len(ranks) == 1 else "")
    if isinstance(event, ValuesFound):
        return describe_values(event.values)
    if isinstance(event, ProblemFound):
        return describe_problem(event.problem)
    if isinstance(event, CallsStuck):
        return event.calls.text
    if isinstance(event, IdleFound):
        return describe_idle(event.idle, (event.world.taken_ns - event.idle.since_ns) / 1e9)
    late = event.straggler
    data = f" because it waits for data ({late.data_share:.0%} of its time, the others {late.usual_data_share:.0%})"
    why = data if late.data_share else ""
    return (
        f"rank {late.rank} is a straggler{why}: it came last in {late.last} of the last {late.calls} calls of "
        f"{late.group.title}, on average {passed(late.mean_late_s) * 1e3:,.0f} ms after all others, which lose "
        f"{late.share:.0%} of their time; {len(late.compared)} of {len(late.group.members)} ranks were compared"
        f"{_of_machine(event.world, late.rank)}"
    )


def _of_machine(world: WorldSnapshot, rank: int) -> str:
    view = world.ranks.get(rank)
    return describe_slow(view.symptoms, world.taken_ns) if view is not None else ""


def describe_values(found: NonFinite | Diverged) -> str:
    """Describe which ranks have brought a value that is not finite, or have another result than others."""
    return _non_finite(found) if isinstance(found, NonFinite) else _diverged(found)


def _non_finite(found: NonFinite) -> str:
    what = "values that are not numbers (NaN)" if found.is_nan else "infinite values"
    operation = describe_operation(found.operation, found.group, found.operation_id, found.label)
    where = f"in the inputs of {operation} in step {found.step}"
    called = called_in(found.call_site)
    were = f"; those of {name_ranks(found.others)} were finite" if found.others else ""
    if not found.are_first:
        had = f"{name_ranks(found.ranks)} {have(found.ranks)} {what}"
        cause = f"{had} {where}{called}{were}{_unknown(found) or ', and'} no rank is known to be first"
    else:
        first = "are the first with" if len(found.ranks) > 1 else "is the first with"
        cause = f"{name_ranks(found.ranks)} {first} {what} {where}{called}{were}"
    skips = f"; the gradient scaler has left out {found.skips} steps in a row" if found.skips else ""
    return f"{cause}{_held(found.parameters)}{skips}"


def _held(parameters: ParameterRange | None) -> str:
    """Which parameter brought the value, or which may have."""
    if parameters is None:
        return ""
    if parameters.candidates > 1:
        return f"; the message holds {parameters.count:,} parameters, {parameters.text}"
    of = f", one of {parameters.count:,} parameters in the message" if parameters.count > 1 else ""
    return f"; the first such value belongs to {parameters.first}{of}"


def _unknown(found: NonFinite) -> str:
    """Whose inputs are not known, if those of others are."""
    unknown = [rank for rank in found.unseen if rank not in found.ranks]
    if not unknown or (not found.others and {*found.ranks} <= {*found.unseen}):
        return ""
    return f"; those of {name_ranks(unknown)} until then are not known, so"


def _diverged(found: Diverged) -> str:
    if found.is_of_parameters:
        return _parted(found)
    operation = (
        f"{describe_operation(found.operation, found.group, found.operation_id, found.label)} in step {found.step}"
    )
    cause = "what was received has been changed on its way or afterwards, or the ranks run different code"
    cause += f"; the results of {name_ranks(found.unseen)} are not known" if found.unseen else ""
    if not found.others:
        return f"{name_ranks(found.ranks)} have different results of {operation}, which must be equal: {cause}"
    results = f"{have(found.ranks)} another result of {operation}"
    return f"{name_ranks(found.ranks)} {results} than {name_ranks(found.others)}, which must be equal: {cause}"


def _parted(found: Diverged) -> str:
    of = f"of {found.group.title} " if found.group is not None else ""
    when = f"in step {found.step}, since then or earlier"
    which = _which(found.parameters)
    must = "replicas must be equal"
    must += f"; those of {name_ranks(found.unseen)} are not known" if found.unseen else ""
    if not found.others:
        return f"{name_ranks(found.ranks)} have different parameters {of}{when}: {must}{which}"
    had = f"{have(found.ranks)} other parameters {of}than {name_ranks(found.others)}"
    return f"{name_ranks(found.ranks)} {had} {when}: {must}{which}"


def _which(parameters: ParameterRange | None) -> str:
    if parameters is None:
        return ""
    if parameters.candidates == 1:
        only = f", the only one of {parameters.count:,} that differs" if parameters.count > 1 else ""
        return f"; it is {parameters.first}{only}"
    if parameters.candidates == parameters.count:
        return f"; several of all {parameters.count:,} differ"
    return f"; several of the {parameters.candidates:,} from {parameters.text} differ"


def describe_problem(found: SaveFailed | GroupShared) -> str:
    """Describe on which ranks a checkpoint has failed and why, or which threads use a group at the same time."""
    return _save_failed(found) if isinstance(found, SaveFailed) else _group_shared(found)


def _save_failed(found: SaveFailed) -> str:
    what = f"{name_checkpoint(found.operation, found.checkpoint)} in step {found.step}"
    why = f"{found.error}: {found.message}" if found.message else found.error
    if not found.are_known:
        return f"{what} has failed; {name_ranks(found.ranks)} received an exception: {why}"
    stage = f", in {found.stage}" if found.stage else ""
    notified = f"; {name_ranks(found.notified)} received it" if found.notified else ""
    return f"{what} has failed on {name_ranks(found.ranks)}{stage}: {why}{notified}"


def _group_shared(found: GroupShared) -> str:
    return (
        f"{describe_sharing(found.ranks, found.example, found.group.title)}; the backend pairs calls in the order in "
        "which each rank makes them, so results may be wrong; one of the two needs a group of its own"
    )
