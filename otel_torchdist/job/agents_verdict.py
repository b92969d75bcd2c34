"""The verdict of a job's agents on a run: a small file in the job directory, for later readers.

If a run has ranks on other nodes, the tapes of one node do not show what became of those. Its agent knows the verdict
of the leading agent, and writes it to this file.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from msgspec import Meta

from otel_torchdist.files.others import read_regular
from otel_torchdist.files.owned import remove
from otel_torchdist.job.run_files import run_file, write_run_file
from otel_torchdist.naming import listed_ranks, readable
from otel_torchdist.tape.names.decoding import DecodingError, decode_json

MAX_FILE_BYTES: Final = 16 << 10
MAX_TEXT: Final = 4096
_KIND: Final = "verdict"
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
    text: Annotated[str, Meta(max_length=MAX_TEXT)]
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
    write_run_file(directory, _KIND, run, dataclasses.asdict(verdict))


def remove_agents_verdict(directory: Path, run: int) -> None:
    """Remove the verdict on a run, which no longer holds.

    Raises:
        OSError: We may not write to the directory.
    """
    remove(run_file(directory, _KIND, run))


def read_agents_verdict(directory: Path, run: int) -> AgentsVerdict | None:
    """Read the verdict on a run; None when there is none, or the file holds something else."""
    try:
        found = decode_json(read_regular(run_file(directory, _KIND, run), MAX_FILE_BYTES), AgentsVerdict)
    except (OSError, DecodingError):
        return None
    shown = {name: readable(getattr(found, name), MAX_TEXT) for name in ("kind", "ranks", "operation", "text")}
    return dataclasses.replace(found, **shown)
