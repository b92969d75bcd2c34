"""Results that an agent writes into a job directory for later readers: its verdict on a run, and the findings."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

from msgspec import Meta

from otel_torchdist.model.text import listed_ranks, readable
from otel_torchdist.system.files.others import changed_ns, read_regular
from otel_torchdist.system.files.owned import remove, replace_at_once
from otel_torchdist.tape.names.decoding import DecodingError, decode_json

# --- files ------------------------------------------------------------------------------------------------------------
# Small JSON files in a job directory: at most one of each kind for a run.


MAX_FILES: Final = 16
"""Files of one kind to keep; the oldest are removed."""


def run_file(directory: Path, kind: str, run: int) -> Path:
    """Return the path of a run's file of one kind."""
    return directory / f"{kind}-{run:032x}.json"


def write_run_file(directory: Path, kind: str, run: int, document: Any) -> None:
    """Replace a run's file atomically.

    Raises:
        OSError: No space is left, or the directory is gone.
    """
    path = run_file(directory, kind, run)
    replace_at_once(path, path.with_name(f".{path.name}.new"), json.dumps(document).encode())
    for old in sorted(directory.glob(f"{kind}-*.json"), key=changed_ns)[:-MAX_FILES]:
        remove(old)


# --- verdicts ---------------------------------------------------------------------------------------------------------
# The agents' verdict on a run with ranks on other nodes: the tapes of this node alone do not show it.
# This node's agent receives the verdict from the judging agent, and writes it to this file.


MAX_VERDICT_BYTES: Final = 16 << 10
MAX_VERDICT_TEXT: Final = 4096
_VERDICT: Final = "verdict"
_Number = Annotated[int, Meta(ge=-(1 << 62), le=1 << 62)]
_Text = Annotated[str, Meta(max_length=256)]


@dataclass(frozen=True, slots=True)
class AgentsVerdict:
    """The current or most recent verdict.

    Attributes:
        kind: Value of a `VerdictKind`.
        ranks: The ranks that the verdict names, as `0-7,16`; '' for none.
        operation: Name of the operation.
        channel: The operation's channel: kind, group, source, destination and tag.
        sequence: The operation's sequence number in that channel.
        text: The verdict as a sentence.
        at_ns: Wall clock time at which this node's agent wrote it.
    """

    kind: _Text
    ranks: Annotated[str, Meta(max_length=1024)]
    operation: _Text
    channel: tuple[_Number, _Text, _Number, _Number, _Number]
    sequence: _Number
    text: Annotated[str, Meta(max_length=MAX_VERDICT_TEXT)]
    at_ns: Annotated[int, Meta(ge=0, le=1 << 62)]

    @property
    def named(self) -> tuple[int, ...]:
        """The ranks that the verdict names, ascending."""
        return tuple(listed_ranks(self.ranks))


def write_agents_verdict(directory: Path, run: int, verdict: AgentsVerdict) -> None:
    """Write the verdict on a run, and replace the previous one.

    Raises:
        OSError: No space is left, or the directory is gone.
    """
    write_run_file(directory, _VERDICT, run, dataclasses.asdict(verdict))


def remove_agents_verdict(directory: Path, run: int) -> None:
    """Remove the verdict on a run, which no longer holds.

    Raises:
        OSError: The directory is not writable.
    """
    remove(run_file(directory, _VERDICT, run))


def read_agents_verdict(directory: Path, run: int) -> AgentsVerdict | None:
    """Read the verdict on a run; None if there is none, or the file is damaged."""
    try:
        verdict = decode_json(read_regular(run_file(directory, _VERDICT, run), MAX_VERDICT_BYTES), AgentsVerdict)
    except (OSError, DecodingError):
        return None
    texts = ("kind", "ranks", "operation", "text")
    shown = {name: readable(getattr(verdict, name), MAX_VERDICT_TEXT) for name in texts}
    return dataclasses.replace(verdict, **shown)


# --- findings ---------------------------------------------------------------------------------------------------------
# The findings on a run: a small file in the job directory, for readers after the agent's end.
# Findings cannot be derived from tapes afterward: tapes contain the newest calls only, and a slow rank shows only over
# many calls.


MAX_KEPT: Final = 32
"""Findings of a run to keep; the newest are kept."""
MAX_FINDING_TEXT: Final = 2048
MAX_FINDINGS_BYTES: Final = 512 << 10
_FINDINGS: Final = "findings"
_Moment = Annotated[int, Meta(ge=0, le=1 << 62)]


@dataclass(frozen=True, slots=True)
class KeptFinding:
    """A finding on a run.

    Attributes:
        kind: Value of a `FindingKind`: `slow_rank`, `straggler`, …
        ranks: The ranks that the finding names, as `0-7,16`.
        group: Key of the group; '' if there are several groups or none.
        text: The finding as a sentence.
        at_ns: Wall clock time at which it was made.
        until_ns: Wall clock time at which it ended; 0 if it held to the end of the run.
    """

    kind: _Text
    ranks: Annotated[str, Meta(max_length=1024)]
    group: _Text
    text: Annotated[str, Meta(max_length=MAX_FINDING_TEXT)]
    at_ns: _Moment
    until_ns: _Moment = 0

    @property
    def key(self) -> tuple[str, str, str]:
        """The fields that identify a finding when it is made again: kind, ranks and group."""
        return self.kind, self.ranks, self.group


def write_kept_findings(directory: Path, run: int, findings: Iterable[KeptFinding]) -> None:
    """Write the findings on a run, and replace the previous list.

    Raises:
        OSError: No space is left, or the directory is gone.
    """
    write_run_file(directory, _FINDINGS, run, [dataclasses.asdict(finding) for finding in list(findings)[-MAX_KEPT:]])


def read_kept_findings(directory: Path, run: int) -> list[KeptFinding]:
    """Read the findings on a run, oldest first; an empty list if there is no file, or it is damaged."""
    try:
        findings = decode_json(read_regular(run_file(directory, _FINDINGS, run), MAX_FINDINGS_BYTES), list[KeptFinding])
    except (OSError, DecodingError):
        return []
    return [
        dataclasses.replace(
            finding,
            kind=readable(finding.kind, MAX_FINDING_TEXT),
            ranks=readable(finding.ranks, MAX_FINDING_TEXT),
            group=readable(finding.group, MAX_FINDING_TEXT),
            text=readable(finding.text, MAX_FINDING_TEXT),
        )
        for finding in findings[-MAX_KEPT:]
    ]
