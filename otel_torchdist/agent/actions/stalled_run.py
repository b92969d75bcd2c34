"""The description of a stall, or of a finding, that actions receive."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from opentelemetry.util.types import AttributeValue

from otel_torchdist.agent.actions.machine_advice import NO_MACHINE, Incidents, MachineAdvice, advise
from otel_torchdist.node.job.description import UNKNOWN_JOB, JobDescription
from otel_torchdist.node.job.description_file import read_description
from otel_torchdist.telemetry import semconv

if TYPE_CHECKING:
    from otel_torchdist.model.reports.incident import Incident
    from otel_torchdist.tape.reading.reader import TapeReader


@dataclass(frozen=True, slots=True)
class StalledRun:
    """A stall, or a finding, as passed to actions and to the function given as `on_stall`.

    Attributes:
        run: Id of the run, 32 hexadecimal digits; commands and metrics show the first 8.
        trace_id: Trace id of the stall's own trace, 32 hexadecimal digits.
        verdict: Kind of the verdict: `absent`, `dead`, `mismatched`, …; docs/verdicts.md lists them.
        ranks: The global ranks that the verdict names, ascending, such as `2,5-7`; '' if it names none.
        text: The whole verdict as a sentence, as in the log.
        attributes: The verdict as span attributes, by the names in docs/spans.md: `torchdist.operation`,
            `torchdist.stall.age` (in seconds) and others.
        directory: Job directory on this node.
        nonces: Ids of the tapes of the run's ranks on this node.
        local_ranks: The run's ranks on this node, ascending.
        occasion: `stall`, `finding` or `machine`: the setting whose action receives it.
        machine: The advice on the machines that the verdict blames.
        job: The job's names in launchers.
    """

    run: str
    trace_id: str
    verdict: str
    ranks: str
    text: str
    attributes: Mapping[str, AttributeValue]
    directory: Path
    nonces: frozenset[int]
    local_ranks: tuple[int, ...]
    occasion: str = "stall"
    machine: MachineAdvice = NO_MACHINE
    job: JobDescription = UNKNOWN_JOB

    def to_json(self) -> str:
        """Return the JSON that commands receive; `docs/schemas` has its schema."""
        import msgspec

        from otel_torchdist.agent.actions.document import SCHEMA, ActionDocument, JobDocument, MachineDocument

        advice, job = self.machine, self.job
        document = ActionDocument(
            schema=SCHEMA,
            occasion=self.occasion,
            run=self.run,
            trace_id=self.trace_id,
            verdict=self.verdict,
            ranks=self.ranks,
            text=self.text,
            attributes={name: _plain(value) for name, value in self.attributes.items()},
            machine=MachineDocument(advice.action.value, advice.reason, advice.hosts, advice.incidents),
            job=JobDocument(
                slurm_job_id=job.slurm_job_id or None,
                slurm_cluster=job.slurm_cluster or None,
                kubernetes_namespace=job.kubernetes_namespace or None,
                kubernetes_pod=job.kubernetes_pod or None,
                kubernetes_node=job.kubernetes_node or None,
                kubernetes_job=job.kubernetes_job or None,
                ray_job_id=job.ray_job_id or None,
                elastic_run_id=job.elastic_run_id or None,
            ),
        )
        return msgspec.json.format(msgspec.json.encode(document)).decode()

    def to_environment(self) -> dict[str, str]:
        """Return the environment variables of a command, such as `TORCHDIST_STALL_VERDICT`."""
        return {
            "TORCHDIST_STALL_RUN": self.run,
            "TORCHDIST_STALL_TRACE_ID": self.trace_id,
            "TORCHDIST_STALL_VERDICT": self.verdict,
            "TORCHDIST_STALL_RANKS": self.ranks,
            "TORCHDIST_STALL_TEXT": self.text,
            "TORCHDIST_MACHINE_ACTION": self.machine.action.value,
            "TORCHDIST_MACHINE_HOSTS": ",".join(self.machine.hosts),
        }


def stalled_run(
    incident: Incident, attributes: Mapping[str, AttributeValue], text: str, tapes: Sequence[TapeReader]
) -> StalledRun:
    """Describe a stall, or a finding.

    Args:
        incident: Identifies the run and the trace.
        attributes: See `StalledRun`.
        text: See `StalledRun`.
        tapes: Tapes of the concerned ranks on this node; at least one, all in one job directory.
    """
    return StalledRun(
        run=f"{incident.run:032x}",
        trace_id=f"{incident.trace_id:032x}",
        verdict=str(attributes.get(semconv.VERDICT, "")),
        ranks=str(attributes.get(semconv.VERDICT_RANKS, "")),
        text=text,
        attributes=attributes,
        directory=tapes[0].path.parent,
        nonces=frozenset(tape.identity.nonce for tape in tapes),
        local_ranks=tuple(sorted(tape.identity.rank for tape in tapes)),
        job=_job_of(tapes),
    )


def with_advice(stall: StalledRun, incidents: Incidents | None) -> StalledRun:
    """Return a stall with the advice on the machines that its verdict blames. Findings never blame one."""
    return replace(stall, machine=advise(stall.attributes, incidents))


def _plain(value: AttributeValue) -> bool | int | float | str | tuple[str, ...]:
    if isinstance(value, bool | int | float | str):
        return value
    return tuple(map(str, value)) if isinstance(value, Sequence) else str(value)


def _job_of(tapes: Sequence[TapeReader]) -> JobDescription:
    """Return the job as the lowest rank describes it."""
    first = min(tapes, key=lambda tape: tape.identity.rank)
    description = read_description(first.path, first.owner)
    return description.job if description is not None else UNKNOWN_JOB
