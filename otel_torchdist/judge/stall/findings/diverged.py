"""Detects outputs and parameters that must be equal on all members of a group, but are not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from otel_torchdist.judge.stall.attributes import Attributes, of_group, of_operation_id
from otel_torchdist.judge.stall.findings.restraint import Patience
from otel_torchdist.judge.verdict.wording.calls import describe_operation
from otel_torchdist.judge.verdict.wording.sentence import with_short_start
from otel_torchdist.judge.world.following.values import CALM_STEPS, PARAMETERS
from otel_torchdist.model.calls import GroupView, OperationId
from otel_torchdist.model.numerics import DifferingRange
from otel_torchdist.model.rank_state.values import OutputChecksum, ParameterRange
from otel_torchdist.model.reports.finding import Finding, FindingKind, JudgedWorld, Severity
from otel_torchdist.model.reports.incident import incident_name
from otel_torchdist.model.snapshot import WorldSnapshot
from otel_torchdist.model.text import have, name_ranks
from otel_torchdist.tape.records.numerics import differing_indices
from otel_torchdist.telemetry import semconv


@dataclass(frozen=True, slots=True)
class Diverged:
    """Outputs or parameters that must be equal on all members, but are not.

    Attributes:
        operation_id: The operation; for parameters, a position in a pseudo channel of the group.
        operation: Name of the operation, or `PARAMETERS`.
        group: None if unknown.
        ranks: The minority, ascending; all compared ranks if there is no majority.
        others: The majority; empty if there is none.
        parameters: The parameters that differ; None if unknown, and for outputs.
        unseen: Members with unknown results, ascending.
        label: Purpose of the operation; see `OperationView`.
    """

    operation_id: OperationId
    operation: str
    group: GroupView | None
    ranks: tuple[int, ...]
    others: tuple[int, ...]
    step: int
    parameters: ParameterRange | None = None
    unseen: tuple[int, ...] = ()
    label: str = ""

    @property
    def is_of_parameters(self) -> bool:
        """Whether parameters differ."""
        return self.operation == PARAMETERS

    @property
    def text(self) -> str:
        """The ranks with different results, and the operation, as a sentence."""
        if self.is_of_parameters:
            return self._of_parameters
        operation = (
            f"{describe_operation(self.operation, self.group, self.operation_id, self.label)} in step {self.step}"
        )
        cause = "what was received has been changed on its way or afterwards, or the ranks run different code"
        cause += f"; the results of {name_ranks(self.unseen)} are not known" if self.unseen else ""
        if not self.others:
            return f"{name_ranks(self.ranks)} have different results of {operation}, which must be equal; {cause}"
        results = f"{have(self.ranks)} another result of {operation}"
        return f"{name_ranks(self.ranks)} {results} than {name_ranks(self.others)}, which must be equal; {cause}"

    @property
    def _of_parameters(self) -> str:
        of = f"of {self.group.title} " if self.group is not None else ""
        when = f"in step {self.step}, since then or earlier"
        which_differ = _describe_range(self.parameters)
        must = "replicas must be equal"
        must += f"; the parameters of {name_ranks(self.unseen)} are not known" if self.unseen else ""
        if not self.others:
            return f"{name_ranks(self.ranks)} have different parameters {of}{when}: {must}{which_differ}"
        had = f"{have(self.ranks)} other parameters {of}than {name_ranks(self.others)}"
        return f"{name_ranks(self.ranks)} {had} {when}: {must}{which_differ}"

    def finding(self, judged: JudgedWorld) -> Finding:
        """Return the finding on values that differ."""
        operation_id = self.operation_id
        return Finding(
            kind=FindingKind.DIVERGED,
            severity=Severity.ERROR,
            incident=judged.incident(f"values equal {incident_name(operation_id)} {judged.world.taken_ns}"),
            ranks=self.ranks,
            group=operation_id.channel.group,
            operation=self.operation,
            text=with_short_start(self.text),
            world=judged.world,
            attributes={semconv.STEP: self.step, **_attributes_of(self)},
        )


def _attributes_of(values: Diverged) -> Attributes:
    if not values.is_of_parameters:
        attributes = of_operation_id(values.operation, values.group, values.operation_id)
        return {**attributes, semconv.DIVERGENCE_OF: "output"}
    attributes = of_group(values.group) if values.group is not None else {}
    attributes[semconv.DIVERGENCE_OF] = "parameters"
    if values.parameters is not None:
        attributes[semconv.DIVERGENCE_PARAMETERS] = values.parameters.text
    return attributes


def _describe_range(parameters: ParameterRange | None) -> str:
    if parameters is None:
        return ""
    if parameters.candidates == 1:
        only = f", the only one of {parameters.count:,} that differs" if parameters.count > 1 else ""
        return f"; it is {parameters.first}{only}"
    if parameters.candidates == parameters.count:
        return f"; several of all {parameters.count:,} differ"
    return f"; several of the {parameters.candidates:,} from {parameters.text} differ"


class DivergenceFinder:
    """Compares the outputs and parameters of one run's ranks."""

    def __init__(self) -> None:
        self._diverged: set[tuple[str, int]] = set()
        self._patience = Patience()

    def find(self, world: WorldSnapshot, is_last: bool) -> Iterator[Diverged]:
        """Yield the differences to report now. At the end of a run, report immediately."""
        outputs: dict[OperationId, dict[int, OutputChecksum]] = {}
        for view in world.ranks.values():
            for output in view.values.outputs:
                outputs.setdefault(output.operation_id, {})[view.rank] = output
        for operation_id, by_member in outputs.items():
            operation, step, label = next(
                (output.operation, output.step, output.label) for output in by_member.values()
            )
            by_rank = {rank: output.checksum for rank, output in by_member.items()}
            persists = operation == PARAMETERS
            key = (operation_id.channel.group, -1 if persists else step // CALM_STEPS)
            if len(set(by_rank.values())) < 2 or key in self._diverged:
                continue
            group = world.group(operation_id.channel.group)
            if not is_last and not self._are_all_known(world, operation_id, group, by_rank):
                continue
            self._diverged.add(key)
            self._patience.forget(operation_id)
            members = group.members if group is not None else frozenset(by_rank)
            ranks, others = _minority(by_rank, max(len(members), len(by_rank)))
            unseen = tuple(sorted(members - by_rank.keys()))
            parameters = _differing_parameters(by_member, others or ranks) if persists else None
            yield Diverged(operation_id, operation, group, ranks, others, step, parameters, unseen, label)

    def _are_all_known(
        self, world: WorldSnapshot, operation_id: OperationId, group: GroupView | None, by_rank: dict[int, int]
    ) -> bool:
        """Return whether all members' results are known or overdue. Two results alone have no minority."""
        if self._patience.is_over(world, operation_id):
            return True
        if group is None:  # group not described yet by its members' agent
            return False
        over = {view.rank for view in world.ranks.values() if view.is_over}
        return group.members <= by_rank.keys() | over  # includes members not seen yet


def _differing_parameters(by_rank: dict[int, OutputChecksum], reference: tuple[int, ...]) -> ParameterRange | None:
    """Return the range of parameters in which ranks differ from a reference rank; None if unknown."""
    reference_output = by_rank[reference[0]]
    compared = reference_output.parameters
    if compared is None:
        return None
    differing: DifferingRange | None = None
    for output in by_rank.values():
        if output.checksum == reference_output.checksum or output.parameters is None:
            continue
        sums, reference_sums = (output.checksum, output.parameters.sums), (reference_output.checksum, compared.sums)
        difference = differing_indices(sums, reference_sums, compared.count)
        if difference is None or output.parameters.count != compared.count:
            return None
        differing = difference if differing is None else differing.joined(difference)
    names = next(
        (output.parameters.names for output in by_rank.values() if output.parameters and output.parameters.names), ()
    )
    if differing is None:
        return None
    first, last = (
        names[index] if index < len(names) else f"parameter {index}" for index in (differing.first, differing.last)
    )
    return ParameterRange(
        first, last, 1 if differing.is_single else differing.last - differing.first + 1, compared.count
    )


def _minority(checksums: dict[int, int], members: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the ranks that differ from the majority of all members, and the majority; all ranks if there is none."""
    (most, count), *_ = Counter(checksums.values()).most_common(1)
    if 2 * count <= members:
        return tuple(sorted(checksums)), ()
    ranks = tuple(sorted(rank for rank, value in checksums.items() if value != most))
    return ranks, tuple(sorted(rank for rank, value in checksums.items() if value == most))
