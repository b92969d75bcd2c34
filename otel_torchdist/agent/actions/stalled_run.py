"""The description of a stall that actions receive."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from opentelemetry.util.types import AttributeValue

from otel_torchdist.telemetry import semconv

if TYPE_CHECKING:
    from otel_torchdist.model.finding import Incident
    from otel_torchdist.tape.reading.reader import TapeReader


@dataclass(frozen=True, slots=True)
class StalledRun:
    """A stall, as passed to the function given as `on_stall` and to other actions.

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

    def to_json(self) -> str:
        """Return the fields that are not specific to this node, as a JSON object."""
        return json.dumps(
            {
                "run": self.run,
                "trace_id": self.trace_id,
                "verdict": self.verdict,
                "ranks": self.ranks,
                "text": self.text,
                "attributes": dict(self.attributes),
            },
            indent=2,
        )

    def to_environment(self) -> dict[str, str]:
        """Return the environment variables of a command, such as `TORCHDIST_STALL_VERDICT`."""
        return {
            "TORCHDIST_STALL_RUN": self.run,
            "TORCHDIST_STALL_TRACE_ID": self.trace_id,
            "TORCHDIST_STALL_VERDICT": self.verdict,
            "TORCHDIST_STALL_RANKS": self.ranks,
            "TORCHDIST_STALL_TEXT": self.text,
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
    )
