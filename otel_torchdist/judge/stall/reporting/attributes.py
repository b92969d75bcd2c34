"""Span attributes of stalls and findings: markers, bars of an incident, log events."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol

from otel_torchdist.judge.stall.attributes import Attributes, listed, of_frame, of_mismatch, of_operation_id
from otel_torchdist.judge.stall.events import IncidentResolved, Ruling, VerdictGiven
from otel_torchdist.judge.verdict.first_death import FirstDeath
from otel_torchdist.judge.verdict.machine_fault import FaultyMachine, describe_machines
from otel_torchdist.judge.verdict.verdict import Outcome, Verdict
from otel_torchdist.judge.verdict.wording.calls import describe_operation
from otel_torchdist.judge.verdict.wording.causes import describe_link
from otel_torchdist.judge.verdict.wording.ends import describe_timeouts
from otel_torchdist.judge.verdict.wording.machine import strongest_symptom
from otel_torchdist.judge.verdict.wording.sentence import sentence
from otel_torchdist.judge.world.places import PlaceSource, RankPlace
from otel_torchdist.model.calls import OperationView
from otel_torchdist.model.ids import run_label
from otel_torchdist.model.reports.finding import Finding
from otel_torchdist.model.reports.incident import Incident
from otel_torchdist.model.reports.verdict_kinds import VerdictKind
from otel_torchdist.model.snapshot import RankView
from otel_torchdist.model.text import compress_ranks, readable, seconds
from otel_torchdist.telemetry import semconv


def of_verdict(verdict: Verdict, run: int, age_s: float) -> Attributes:
    """Return the attributes of a verdict and its operation."""
    attributes: Attributes = {
        semconv.STALLED: True,
        semconv.RUN: run_label(run),
        semconv.VERDICT: verdict.kind.value,
        semconv.VERDICT_COVERAGE: f"{verdict.reporting}/{verdict.members}",
        semconv.STALL_AGE: age_s,
    }
    if verdict.ranks:
        attributes[semconv.VERDICT_RANKS] = compress_ranks(verdict.ranks)
    if verdict.mismatch is not None:
        attributes |= of_mismatch(verdict.mismatch)
    if verdict.circle:
        attributes[semconv.CIRCLE] = listed([f"rank {link.rank}: {describe_link(link)}" for link in verdict.circle])
    if verdict.first is not None:
        attributes |= _of_death(verdict.first)
    evidence = strongest_symptom(verdict)
    if evidence is not None:
        attributes[semconv.MACHINE_EVIDENCE] = evidence[1].kind.value
    return (
        attributes
        | of_machines(verdict.machines)
        | of_operation_id(verdict.operation, verdict.group, verdict.operation_id)
    )


def of_machines(machines: Sequence[FaultyMachine]) -> Attributes:
    """Return the attributes of the machines that a verdict blames; empty if it blames none."""
    if not machines:
        return {}
    return {
        semconv.MACHINE_FAULT: "shown" if all(machine.is_shown for machine in machines) else "suspected",
        semconv.MACHINE_HOSTS: [machine.host for machine in machines],
        semconv.MACHINE_REASON: describe_machines(machines),
    }


def _of_death(first: FirstDeath) -> Attributes:
    """Return the attributes of the first named rank's death."""
    attributes: Attributes = {semconv.DEATH_ORDER: "inferred" if first.is_inferred else "seen"}
    if first.lead_ns is not None:
        attributes[semconv.DEATH_LEAD] = first.lead_ns / 1e9
    death = first.deaths.get(first.ranks[0])
    if death is None:
        return attributes
    if death.signal:
        attributes[semconv.DEATH_SIGNAL] = death.signal_name
    if death.exit_code is not None:
        attributes[semconv.PROCESS_EXIT_CODE] = death.exit_code
    if death.oom:
        attributes[semconv.DEATH_OUT_OF_MEMORY] = death.oom
    return attributes


def of_finding(finding: Finding) -> Attributes:
    """Return the attributes of a finding."""
    return {
        semconv.RUN: run_label(finding.run),
        semconv.VERDICT: finding.kind.value,
        semconv.VERDICT_RANKS: compress_ranks(finding.ranks),
        **finding.attributes,
    }


def of_operation(view: RankView, operation: OperationView) -> Attributes:
    """Return the attributes of an open operation, as its final span will show them, where known."""
    record = operation.record
    attributes = of_operation_id(operation.name, operation.group, operation.operation_id)
    attributes[semconv.RANK] = view.rank
    attributes[semconv.STEP] = record.step
    attributes[semconv.MESSAGE_SIZE] = record.message_bytes
    if record.peer >= 0:
        attributes[semconv.PEER] = record.peer
    signature = operation.signature
    if signature is not None and signature.tensors:
        attributes[semconv.TENSOR_SHAPES] = ["x".join(map(str, shape)) or "scalar" for shape in signature.shapes]
        attributes[semconv.TENSOR_DTYPES] = list(signature.dtypes)
    if signature is not None and signature.reduce_op:
        attributes[semconv.REDUCE_OP] = signature.reduce_op
    if operation.label:
        attributes[semconv.CALLER] = operation.label
    if operation.path:
        attributes[semconv.CALLER_PATH] = list(operation.path)
    return attributes | of_frame(operation.call_site)


def of_place(place: RankPlace) -> Attributes:
    """Return the attributes of a rank's place; empty if the rank has moved on since its last operation."""
    if place.source is PlaceSource.LAST_OPERATION:
        return {}
    attributes = of_frame(place.frame)
    if place.stacktrace:
        attributes[semconv.CODE_STACKTRACE] = place.stacktrace
        attributes[semconv.STACK_SOURCE] = "signal" if place.source is PlaceSource.SIGNAL else "thread"
    return attributes


def resolution(verdict: Verdict, outcome: Outcome, length_ns: int, how: str = "") -> str:
    """Describe how a stalled operation ended, and after what time. `how` comes from `describe_timeouts`."""
    where = describe_operation(verdict.operation, verdict.group, verdict.operation_id, verdict.label)
    length = seconds(length_ns / 1e9)
    match outcome:
        case Outcome.COMPLETED:
            return f"{where} completed after {length}"
        case Outcome.FAILED:
            return f"{where} failed after {length}{how and f': {how}'}"
        case Outcome.RANKS_ENDED if verdict.kind is VerdictKind.DEAD:
            return f"all ranks that waited in {where} have ended, {length} after it began"
        case Outcome.RANKS_ENDED:
            return f"the job was ended while it hung, after {length}, in {where}"
        case Outcome.OUT_OF_SIGHT:
            return f"{where} can no longer be observed after {length}: its tapes are gone or now belong to another run"


def resolution_of(event: IncidentResolved) -> str:
    """Describe how an incident ended."""
    ranks = event.world.ranks
    members = [ranks[rank] for rank in event.verdict.roll.standings if rank in ranks]
    return resolution(event.verdict, event.outcome, event.length_ns, describe_timeouts(members))


def ruling_of(verdict: Verdict, incident: Incident, epoch: int, now_ns: int) -> Ruling:
    """Put a verdict into words.

    Args:
        verdict: The verdict with places; see `locate`.
        incident: Its incident.
        epoch: See `Ruling`.
        now_ns: Monotonic time.
    """
    age_s = verdict.age_ns(now_ns) / 1e9
    attributes = of_verdict(verdict, incident.run, age_s)
    return Ruling(incident, epoch, verdict.operation_id, sentence(verdict, age_s), attributes)


# --- notices ----------------------------------------------------------------------------------------------------------
# Short notices on the job's standard error that tell people of a stall or a crash.


PREFIX: Final = "otel_torchdist: "
MAX_SENTENCE: Final = 2_500
MAX_COMMAND: Final = 1_200
MAX_HOST: Final = 256
"""Maximum size of a host name in bytes. All lines together must fit into PIPE_BUF (4,096 bytes), which a pipe takes
atomically."""


class Announcer(Protocol):
    """Announces verdicts to the people who run the job."""

    @property
    def is_announcing(self) -> bool:
        """Whether a verdict is still to be announced."""
        ...

    def announce(self, event: VerdictGiven, text: str) -> bool:
        """Announce a verdict. Return whether it has been announced, or will be by the log of a rank.

        Args:
            event: The first verdict on an incident.
            text: The verdict as sentences.
        """
        ...


def notice_lines(text: str, run: int, directory: Path, host: str = "", launcher: Sequence[str] = ()) -> list[str]:
    """Return the lines of a notice, without line ends.

    Args:
        text: The verdict as sentences.
        run: The run's id; 0 if unknown.
        directory: The job directory.
        host: The host of that directory, if the job has several hosts.
        launcher: The words before a command that run it on that host; none if it is to be run by hand.
    """
    words = [*launcher, "otel-torchdist", "diagnose", run_label(run), "--run-dir", str(directory)]
    command = shlex.join(filter(None, words))
    where = f" (on {_cut(host, MAX_HOST)})" if host else ""
    return [f"{PREFIX}{_cut(text, MAX_SENTENCE)}", f"{PREFIX}details: {_cut(command, MAX_COMMAND)}{where}"]


def _cut(text: str, most: int) -> str:
    return readable(text).encode()[:most].decode(errors="ignore")
