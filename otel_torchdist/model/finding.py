"""A finding: something wrong in a run that nothing waits for. Each has one value, which all outputs render."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from otel_torchdist.model.finding_kinds import FindingKind, Severity
from otel_torchdist.model.incident import Incident
from otel_torchdist.model.snapshot import WorldSnapshot

AttributeValue: TypeAlias = str | bool | int | float | Sequence[str]


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding, complete for every output.

    Attributes:
        kind: Its kind.
        severity: How bad it is.
        incident: Names its trace.
        ranks: The ranks that it names, ascending.
        group: Key of the group concerned; '' if there is none or several.
        operation: Name of the operation concerned; '' if there is none or several.
        sentence: The finding in words.
        world: The snapshot in which it was found.
        attributes: Attributes of its span beside run, verdict and ranks, by their names in `semconv`.
    """

    kind: FindingKind
    severity: Severity
    incident: Incident
    ranks: tuple[int, ...]
    group: str
    operation: str
    sentence: str
    world: WorldSnapshot
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict[str, AttributeValue])

    @property
    def run(self) -> int:
        """128-bit id of the run."""
        return self.incident.run

    @property
    def nonces(self) -> frozenset[int]:
        """Tapes of this node's ranks of the run."""
        return frozenset(view.nonce for view in self.world.ranks.values() if not view.is_remote)


@dataclass(frozen=True, slots=True)
class FindingOver:
    """A finding no longer holds; attributes as in `Finding`."""

    kind: FindingKind
    run: int
    ranks: tuple[int, ...]
    group: str = ""


@dataclass(frozen=True, slots=True)
class JudgedWorld:
    """A snapshot of a run, and how the agent that looks for findings in it names them.

    Attributes:
        world: The snapshot.
        run: 128-bit id of the run, or a substitute.
        agent_id: See `Incident`.
    """

    world: WorldSnapshot
    run: int
    agent_id: int = 0

    def incident(self, name: str) -> Incident:
        """Return the incident with a name that is unique in the run."""
        return Incident(self.run, name, self.agent_id)
