"""Reads the descriptions that ranks have written beside their tapes, without trusting them."""

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
    shortened,
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
        description = decode_json(read_regular(description_path(tape), MAX_BYTES, owner), RankDescription)
    except (OSError, DecodingError):
        return None
    job = description.job
    values = {field.name: getattr(job, field.name) for field in fields(job)}
    texts = {name: shortened(value) for name, value in values.items() if isinstance(value, str)}
    command = tuple(shortened(argument) for argument in job.command[:MAX_ARGUMENTS])
    return RankDescription(replace(job, command=command, **texts), shortened(description.gpu), description.stderr)


def gpu_of(tape: Path, owner: int | None = None) -> str:
    """Return the GPU UUID of the rank that writes `tape`; '' if unknown."""
    description = read_description(tape, owner)
    return description.gpu if description is not None else ""


def job_in(directory: Path, owner: int | None = None) -> JobDescription | None:
    """Return the job from the newest readable description in a job directory; None if there is none."""
    with contextlib.suppress(OSError):
        newest = sorted(directory.glob("*.description"), key=changed_ns, reverse=True)
        descriptions = (read_description(file, owner) for file in newest)
        return next((description.job for description in descriptions if description is not None), None)
    return None
