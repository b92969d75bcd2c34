"""Results that an agent keeps in a job directory for later readers: its verdict on a run, and the findings."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

from msgspec import Meta

from otel_torchdist.model.naming import listed_ranks, readable
from otel_torchdist.system.files.others import changed_ns, read_regular
from otel_torchdist.system.files.owned import remove, replace_at_once
from otel_torchdist.tape.names.decoding import DecodingError, decode_json

# --- files ------------------------------------------------------------------------------------------------------------
# Small JSON files of a job directory, one of a kind for each run: those of earlier attempts are bounded.


MAX_FILES: Final = 16
"""Of one kind, the newest."""


def run_file(directory: Path, kind: str, run: int) -> Path:
    """Return the path of the file of a run."""
    return directory / f"{kind}-{run:032x}.json"


def write_run_file(directory: Path, kind: str, run: int, document: Any) -> None:
    """Replace the file of a run at once.

    Raises:
        OSError: There is no room, or the directory is gone.
    """
    path = run_file(directory, kind, run)
    replace_at_once(path, path.with_name(f".{path.name}.new"), json.dumps(document).encode())
    for old in sorted(directory.glob(f"{kind}-*.json"), key=changed_ns)[:-MAX_FILES]:
        remove(old)


# --- verdicts ---------------------------------------------------------------------------------------------------------
# The verdict of a job's agents on a run: a small file in the job directory, for later readers.
# If a run has ranks on other nodes, the tapes of one node do not show what became of those. Its agent knows the verdict
# of the leading agent, and writes it to this file.


MAX_VERDICT_BYTES: Final = 16 << 10
MAX_VERDICT_TEXT: Final = 4096
_VERDICT: Final = "verdict"
_Number = Annotated[int, Meta(ge=-(1 << 62), le=1 << 62)]
_Text = Annotated[str, Meta(max_length=256)]


@dataclass(frozen=True, slots=True)
class AgentsVerdict:
    """The current or most recent verdict.

    Attributes:
        kind: As in `VerdictKind`.
        ranks: The ranks that it names, as `0-7,16`; '' for none.
        operation: The operation's name.
        channel: The operation's channel: kind, group, source, destination and tag.
        sequence: The operation's sequence number in that channel.
        text: The verdict as a sentence.
        at_ns: When this node's agent wrote it down, by the wall clock.
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
        """The ranks that it names, ascending."""
        return tuple(listed_ranks(self.ranks))


def write_agents_verdict(directory: Path, run: int, verdict: AgentsVerdict) -> None:
    """Write the verdict on a run, replacing the previous one.

    Raises:
        OSError: There is no room, or the directory is gone.
    """
    write_run_file(directory, _VERDICT, run, dataclasses.asdict(verdict))


def remove_agents_verdict(directory: Path, run: int) -> None:
    """Remove the verdict on a run, which no longer holds.

    Raises:
        OSError: We may not write to the directory.
    """
    remove(run_file(directory, _VERDICT, run))


def read_agents_verdict(directory: Path, run: int) -> AgentsVerdict | None:
    """Read the verdict on a run; None when there is none, or the file holds something else."""
    try:
        found = decode_json(read_regular(run_file(directory, _VERDICT, run), MAX_VERDICT_BYTES), AgentsVerdict)
    except (OSError, DecodingError):
        return None
    shown = {name: readable(getattr(found, name), MAX_VERDICT_TEXT) for name in ("kind", "ranks", "operation", "text")}
    return dataclasses.replace(found, **shown)


# --- findings ---------------------------------------------------------------------------------------------------------
# The findings on a run: a small file in the job directory, for readers that come after the agent.
# Tapes hold the newest calls only, and a rank that is slow shows in no single call: what an agent has found in a run
# over minutes cannot be found again afterwards.


MAX_KEPT: Final = 32
"""Findings of a run, the newest; a job that is wrong in more ways does not need a longer list."""
MAX_FINDING_TEXT: Final = 2048
MAX_FINDINGS_BYTES: Final = 512 << 10
_FINDINGS: Final = "findings"
_Moment = Annotated[int, Meta(ge=0, le=1 << 62)]


@dataclass(frozen=True, slots=True)
class KeptFinding:
    """A finding on a run.

    Attributes:
        kind: As in the attribute of its span: `slow_rank`, `straggler`, …
        ranks: The ranks that it names, as `0-7,16`.
        group: Key of the group; '' if there are several or none.
        text: The finding as a sentence.
        at_ns: When it was found, by the wall clock.
        until_ns: When it no longer held; 0 if it held to the end.
    """

    kind: _Text
    ranks: Annotated[str, Meta(max_length=1024)]
    group: _Text
    text: Annotated[str, Meta(max_length=MAX_FINDING_TEXT)]
    at_ns: _Moment
    until_ns: _Moment = 0

    @property
    def key(self) -> tuple[str, str, str]:
        """What is the same if it is found again."""
        return self.kind, self.ranks, self.group


def write_kept_findings(directory: Path, run: int, findings: Iterable[KeptFinding]) -> None:
    """Write the findings on a run, replacing the previous list.

    Raises:
        OSError: There is no room, or the directory is gone.
    """
    write_run_file(directory, _FINDINGS, run, [dataclasses.asdict(one) for one in list(findings)[-MAX_KEPT:]])


def read_kept_findings(directory: Path, run: int) -> list[KeptFinding]:
    """Read the findings on a run, oldest first; none if there is no file, or it holds something else."""
    try:
        found = decode_json(read_regular(run_file(directory, _FINDINGS, run), MAX_FINDINGS_BYTES), list[KeptFinding])
    except (OSError, DecodingError):
        return []
    return [
        dataclasses.replace(
            one,
            kind=readable(one.kind, MAX_FINDING_TEXT),
            ranks=readable(one.ranks, MAX_FINDING_TEXT),
            group=readable(one.group, MAX_FINDING_TEXT),
            text=readable(one.text, MAX_FINDING_TEXT),
        )
        for one in found[-MAX_KEPT:]
    ]
