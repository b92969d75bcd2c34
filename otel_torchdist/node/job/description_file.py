"""Reads what ranks have written down of themselves, without trusting it."""

from __future__ import annotations

import contextlib
from dataclasses import fields, replace
from pathlib import Path

from otel_torchdist.node.job.description import (
    MAX_ARGUMENTS,
    MAX_BYTES,
    JobDescription,
    RankDescription,
    description_path,
    shown,
)
from otel_torchdist.system.files.others import changed_ns, read_regular
from otel_torchdist.tape.names.decoding import DecodingError, decode_json


def read_description(tape: Path, owner: int | None = None) -> RankDescription | None:
    """Read the description beside a tape; None if there is none, or if it is damaged.

    Args:
        tape: The tape.
        owner: The user who must own the file; None for any.
    """
    try:
        found = decode_json(read_regular(description_path(tape), MAX_BYTES, owner), RankDescription)
    except (OSError, DecodingError):
        return None
    given = {one.name: getattr(found.job, one.name) for one in fields(found.job)}
    texts = {name: shown(text) for name, text in given.items() if isinstance(text, str)}
    command = tuple(shown(argument) for argument in found.job.command[:MAX_ARGUMENTS])
    return RankDescription(replace(found.job, command=command, **texts), shown(found.gpu), found.stderr)


def gpu_of(tape: Path, owner: int | None = None) -> str:
    """Return the UUID of the GPU of the rank that writes `tape`; '' if it is not known."""
    found = read_description(tape, owner)
    return found.gpu if found is not None else ""


def job_in(directory: Path, owner: int | None = None) -> JobDescription | None:
    """Return the job as its newest rank in a job directory describes it; None if none does."""
    with contextlib.suppress(OSError):
        newest = sorted(directory.glob("*.description"), key=changed_ns, reverse=True)
        return next((found.job for file in newest if (found := read_description(file, owner)) is not None), None)
    return None
