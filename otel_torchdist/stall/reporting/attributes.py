"""Attributes of everything that belongs to a stall: markers, the bars of an incident, log events."""

from __future__ import annotations

from opentelemetry.util.types import AttributeValue

from otel_torchdist import semconv
from otel_torchdist.model.calls import GroupView, OperationId, OperationView
from otel_torchdist.model.incident import Incident
from otel_torchdist.model.names import CallSiteName
from otel_torchdist.model.snapshot import RankView
from otel_torchdist.naming import compress_ranks, run_label
from otel_torchdist.stall.events import IncidentResolved, Ruling
from otel_torchdist.stall.findings.checkpoints import SaveFailed
from otel_torchdist.stall.findings.events import (
    CallsStuck,
    Finding,
    IdleFound,
    MismatchFound,
    ProblemFound,
    SlowFound,
    StragglerFound,
    ValuesFound,
)
from otel_torchdist.stall.findings.values import Diverged, NonFinite
from otel_torchdist.units import seconds
from otel_torchdist.verdict.first_death import FirstDeath
from otel_torchdist.verdict.model import Outcome, Verdict, VerdictKind
from otel_torchdist.verdict.wording.checkpoints import name_checkpoint
from otel_torchdist.verdict.wording.endings import describe_end
from otel_torchdist.verdict.wording.machine import telling
from otel_torchdist.verdict.wording.operations import describe_operation
from otel_torchdist.verdict.wording.sentence import describe_link, sentence
from otel_torchdist.world.mismatch import Mismatch
from otel_torchdist.world.places import Place, Source

Attributes = dict[str, AttributeValue]


def of_verdict(verdict: Verdict, run: int, age_s: float) -> Attributes:
    """Attributes of a verdict and of its operation."""
    found: Attributes = {
        semconv.STALLED: True,
        semconv.RUN: run_label(run),
        semconv.VERDICT: verdict.kind.value,
        semconv.VERDICT_COVERAGE: f"{verdict.reporting}/{verdict.members}",
        semconv.STALL_AGE: age_s,
    }
    if verdict.ranks:
        found[semconv.VERDICT_RANKS] = compress_ranks(verdict.ranks)
    if verdict.mismatch is not None:
        found |= _of_mismatch(verdict.mismatch)
    if verdict.circle:
        found[semconv.CIRCLE] = [f"rank {link.rank}: {describe_link(link)}" for link in verdict.circle]
    if verdict.first is not None:
        found |= _of_death(verdict.first)
    evidence = telling(verdict)
    if evidence is not None:
        found[semconv.MACHINE_EVIDENCE] = evidence[1].kind.value
    return found | _of_operation_id(verdict.operation, verdict.group, verdict.operation_id)


def _of_death(first: FirstDeath) -> Attributes:
    """How the first rank that a verdict names died."""
    found: Attributes = {semconv.DEATH_ORDER: "inferred" if first.is_inferred else "seen"}
    if first.lead_ns is not None:
        found[semconv.DEATH_LEAD] = first.lead_ns / 1e9
    death = first.deaths.get(first.ranks[0])
    if death is None:
        return found
    if death.signal:
        found[semconv.DEATH_SIGNAL] = death.signal_name
    if death.exit_code is not None:
        found[semconv.PROCESS_EXIT_CODE] = death.exit_code
    if death.oom:
        found[semconv.DEATH_OUT_OF_MEMORY] = death.oom
    return found


def of_finding(event: Finding) -> Attributes:
    """Attributes of what was found without a stall."""
    if isinstance(event, MismatchFound):
        return _of_silent_mismatch(event)
    if isinstance(event, ValuesFound):
        return _of_values(event)
    if isinstance(event, ProblemFound):
        return _of_problem(event)
    if isinstance(event, CallsStuck):
        return _of_calls(event)
    if isinstance(event, IdleFound):
        return _of_idle(event)
    return _of_straggler(event) if isinstance(event, StragglerFound) else _of_slow_part(event)


def _of_silent_mismatch(event: MismatchFound) -> Attributes:
    mismatch = event.mismatch
    found: Attributes = {
        semconv.RUN: run_label(event.incident.run),
        semconv.VERDICT: semconv.MISMATCHED,
        semconv.VERDICT_RANKS: compress_ranks(mismatch.ranks),
    }
    return found | _of_mismatch(mismatch) | _of_operation_id(mismatch.operation, event.group, mismatch.operation_id)


def _of_values(event: ValuesFound) -> Attributes:
    found = event.values
    attributes: Attributes = {
        semconv.RUN: run_label(event.incident.run),
        semconv.VERDICT: semconv.NON_FINITE if isinstance(found, NonFinite) else semconv.DIVERGED,
        semconv.VERDICT_RANKS: compress_ranks(found.ranks),
        semconv.STEP: found.step,
    }
    if isinstance(found, Diverged) and found.is_of_parameters:
        of_group = _of_group(found.group) if found.group is not None else {}
        which = found.parameters
        named: Attributes = {} if which is None else {semconv.DIVERGENCE_PARAMETERS: which.text}
        return attributes | of_group | {semconv.DIVERGENCE_OF: "parameters"} | named
    attributes |= _of_operation_id(found.operation, found.group, found.operation_id)
    if isinstance(found, Diverged):
        return attributes | {semconv.DIVERGENCE_OF: "output"}
    if found.parameters is not None:
        attributes |= {semconv.NON_FINITE_PARAMETERS: found.parameters.text}
    return attributes | _of_frame(found.call_site)


def _of_problem(event: ProblemFound) -> Attributes:
    problem = event.problem
    found: Attributes = {
        semconv.RUN: run_label(event.incident.run),
        semconv.VERDICT: semconv.CHECKPOINT_FAILED if isinstance(problem, SaveFailed) else semconv.SHARED_GROUP,
        semconv.VERDICT_RANKS: compress_ranks(problem.ranks),
    }
    if not isinstance(problem, SaveFailed):
        return found | {semconv.OPERATION: problem.example.operations[0], **_of_group(problem.group)}
    found |= {
        semconv.OPERATION: name_checkpoint(problem.operation, ""),
        semconv.CHECKPOINT_OPERATION: problem.operation,
        semconv.CHECKPOINT_ID: problem.checkpoint,
        semconv.STEP: problem.step,
        semconv.ERROR_TYPE: problem.error,
    }
    return found | {semconv.CHECKPOINT_STAGE: problem.stage} if problem.stage else found


def _of_calls(event: CallsStuck) -> Attributes:
    calls = event.calls
    found: Attributes = {
        semconv.RUN: run_label(event.incident.run),
        semconv.VERDICT: calls.trouble.value,
        semconv.VERDICT_RANKS: compress_ranks(calls.ranks),
        semconv.OPERATION: semconv.REMOTE_CALL,
        semconv.STALL_AGE: (event.world.taken_ns - calls.since_ns) / 1e9,
    }
    return found | ({semconv.RPC_METHOD: calls.function} if calls.function else {})


def _of_idle(event: IdleFound) -> Attributes:
    ranks = event.idle.ranks
    return {
        semconv.RUN: run_label(event.incident.run),
        semconv.VERDICT: semconv.IDLE,
        semconv.VERDICT_RANKS: compress_ranks(ranks),
        semconv.STALL_AGE: (event.world.taken_ns - event.idle.since_ns) / 1e9,
        **_of_frame(event.idle.stands[ranks[0]].frame),
    }


def _of_straggler(event: StragglerFound) -> Attributes:
    late = event.straggler
    return {
        semconv.RUN: run_label(event.incident.run),
        semconv.VERDICT: semconv.STRAGGLER,
        semconv.VERDICT_RANKS: str(late.rank),
        semconv.VERDICT_COVERAGE: f"{len(late.compared)}/{len(late.group.members)}",
        semconv.STRAGGLER_SHARE: late.share,
        semconv.STRAGGLER_LATENESS: late.mean_late_s,
        semconv.OPERATION: late.operation,
        **_of_group(late.group),
    }


def _of_slow_part(event: SlowFound) -> Attributes:
    part = event.part
    found: Attributes = {
        semconv.RUN: run_label(event.incident.run),
        semconv.VERDICT: part.kind.value,
        semconv.VERDICT_RANKS: compress_ranks(part.ranks),
        semconv.VERDICT_COVERAGE: f"{len(part.compared)}/{len(event.world.ranks)}",
        semconv.SLOW_EXCESS: part.excess_s,
        semconv.SLOW_GAIN: part.gain_s,
        semconv.SLOW_GAIN_SHARE: part.gain_s / part.step_s,
        **_of_frame(part.call_site),
    }
    if part.operation:
        found[semconv.OPERATION] = part.operation
    groups = (view.groups.get(part.group) for view in event.world.in_order)
    group = next((group for group in groups if group is not None), None)
    return found if group is None else found | _of_group(group)


def _of_mismatch(mismatch: Mismatch) -> Attributes:
    return {
        semconv.MISMATCH_FIELD: mismatch.field.value,
        semconv.MISMATCH_SEQUENCE: mismatch.operation_id.sequence,
        semconv.MISMATCH_VALUES: [f"{compress_ranks(ranks)}: {text}" for text, ranks in mismatch.parties],
    }


def of_operation(view: RankView, operation: OperationView) -> Attributes:
    """Attributes of an open operation, as its own span will show them, as far as they are known."""
    record = operation.record
    found = _of_operation_id(operation.name, operation.group, operation.operation_id)
    found[semconv.RANK] = view.rank
    found[semconv.STEP] = record.step
    found[semconv.MESSAGE_SIZE] = record.message_bytes
    if record.peer >= 0:
        found[semconv.PEER] = record.peer
    signature = operation.signature
    if signature is not None and signature.tensors:
        found[semconv.TENSOR_SHAPES] = ["x".join(map(str, shape)) or "scalar" for shape in signature.shapes]
        found[semconv.TENSOR_DTYPES] = list(signature.dtypes)
    if signature is not None and signature.reduce_op:
        found[semconv.REDUCE_OP] = signature.reduce_op
    if operation.label:
        found[semconv.CALLER] = operation.label
    if operation.path:
        found[semconv.CALLER_PATH] = list(operation.path)
    return found | _of_frame(operation.call_site)


def of_place(place: Place) -> Attributes:
    """Attributes of a rank's place; none if it has moved on since its last operation."""
    if place.source is Source.LAST_OPERATION:
        return {}
    found = _of_frame(place.frame)
    if place.stacktrace:
        found[semconv.CODE_STACKTRACE] = place.stacktrace
        found[semconv.STACK_SOURCE] = "signal" if place.source is Source.SIGNAL else "thread"
    return found


def _of_operation_id(operation: str, group: GroupView | None, operation_id: OperationId) -> Attributes:
    found: Attributes = {semconv.OPERATION: operation, semconv.SEQUENCE: operation_id.sequence}
    if operation_id.channel.is_point_to_point:
        found[semconv.TAG] = operation_id.channel.tag
    if group is None:
        return found
    found |= _of_group(group)
    if not group.name.aligned:
        found[semconv.SEQUENCE_ALIGNED] = False
    return found


def _of_group(group: GroupView) -> Attributes:
    found: Attributes = {semconv.GROUP_HASH: group.key, semconv.GROUP_SIZE: len(group.members)}
    if group.name.description:
        found[semconv.GROUP_DESCRIPTION] = group.name.description
    if group.name.dimensions:
        found[semconv.MESH_DIMENSIONS] = list(group.name.dimensions)
    return found


def _of_frame(frame: CallSiteName | None) -> Attributes:
    if frame is None:
        return {}
    return {
        semconv.CODE_FUNCTION: frame.function,
        semconv.CODE_FILE: frame.file,
        semconv.CODE_LINE: frame.line,
    }


def resolution(verdict: Verdict, outcome: Outcome, length_ns: int, how: str = "") -> str:
    """Describe how a stalled operation ended, and after how long; `how` is from `describe_end`."""
    where = describe_operation(verdict.operation, verdict.group, verdict.operation_id, verdict.label)
    length = seconds(length_ns / 1e9)
    if outcome is Outcome.RANKS_ENDED and verdict.kind is VerdictKind.DEAD:
        return f"all ranks that waited in {where} have ended, {length} after it began"
    endings = {
        Outcome.COMPLETED: f"{where} completed after {length}",
        Outcome.FAILED: f"{where} failed after {length}{how and f': {how}'}",
        Outcome.RANKS_ENDED: f"the job was ended while it hung, after {length}, in {where}",
        Outcome.OUT_OF_SIGHT: f"{where} can no longer be observed after {length}: "
        "its tapes are gone or now belong to another run",
    }
    return endings[outcome]


def resolution_of(event: IncidentResolved) -> str:
    """Describe how an incident ended."""
    ranks = event.world.ranks
    members = [ranks[rank] for rank in event.verdict.roll.standings if rank in ranks]
    return resolution(event.verdict, event.outcome, event.length_ns, describe_end(members))


def ruling_of(verdict: Verdict, incident: Incident, epoch: int, now_ns: int) -> Ruling:
    """Put a verdict into words.

    Args:
        verdict: The verdict with places; see `locate`.
        incident: The incident to which it belongs.
        epoch: See `Ruling`.
        now_ns: Monotonic time.
    """
    age_s = verdict.age_ns(now_ns) / 1e9
    found = of_verdict(verdict, incident.run, age_s)
    return Ruling(incident, epoch, verdict.operation_id, sentence(verdict, age_s), found)
