"""The findings on a run: a small file in the job directory, for readers that come after the agent.

Tapes hold the newest calls only, and a rank that is slow shows in no single call: what an agent has found in a run over
minutes cannot be found again afterwards.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from msgspec import Meta

from otel_torchdist.files.others import read_regular
from otel_torchdist.job.run_files import run_file, write_run_file
from otel_torchdist.naming import readable
from otel_torchdist.tape.names.decoding import DecodingError, decode_json

MAX_KEPT: Final = 32
"""Findings of a run, the newest; a job that is wrong in more ways does not need a longer list."""
MAX_TEXT: Final = 2048
MAX_FILE_BYTES: Final = 512 << 10
_KIND: Final = "findings"
_Moment = Annotated[int, Meta(ge=0, le=1 << 62)]
_Text = Annotated[str, Meta(max_length=256)]


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
    text: Annotated[str, Meta(max_length=MAX_TEXT)]
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
    write_run_file(directory, _KIND, run, [dataclasses.asdict(one) for one in list(findings)[-MAX_KEPT:]])


def read_kept_findings(directory: Path, run: int) -> list[KeptFinding]:
    """Read the findings on a run, oldest first; none if there is no file, or it holds something else."""
    try:
        found = decode_json(read_regular(run_file(directory, _KIND, run), MAX_FILE_BYTES), list[KeptFinding])
    except (OSError, DecodingError):
        return []
    return [
        dataclasses.replace(
            one,
            kind=readable(one.kind, MAX_TEXT),
            ranks=readable(one.ranks, MAX_TEXT),
            group=readable(one.group, MAX_TEXT),
            text=readable(one.text, MAX_TEXT),
        )
        for one in found[-MAX_KEPT:]
    ]
