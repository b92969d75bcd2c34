"""The description of a stall that actions receive."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from opentelemetry.util.types import AttributeValue


@dataclass(frozen=True, slots=True)
class StalledRun:
    """A stall, as passed to actions and callbacks.

    Attributes:
        run: 128-bit id of the run, as hexadecimal digits.
        trace_id: Trace id of the incident, as hexadecimal digits.
        verdict: `absent`, `dead`, …
        ranks: The ranks that it names, such as `2,5-7`; '' if it names none.
        text: The whole verdict as a sentence.
        attributes: The verdict as span attributes; see the semantic conventions.
        directory: Job directory on this node.
        nonces: Tapes of this node's ranks that belong to the run.
        local_ranks: This node's ranks that belong to the run.
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
        """Encode everything that is not specific to this node."""
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
        """Encode everything but the attributes as environment variables of a command."""
        return {
            "TORCHDIST_STALL_RUN": self.run,
            "TORCHDIST_STALL_TRACE_ID": self.trace_id,
            "TORCHDIST_STALL_VERDICT": self.verdict,
            "TORCHDIST_STALL_RANKS": self.ranks,
            "TORCHDIST_STALL_TEXT": self.text,
        }
