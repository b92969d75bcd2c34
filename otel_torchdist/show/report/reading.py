"""Reads the conclusions of a report back from its HTML file, without trusting the file."""

from __future__ import annotations

import base64
import binascii
import re
import zlib
from pathlib import Path
from typing import Final

import msgspec

from otel_torchdist.analysis.result import AdviceResult
from otel_torchdist.errors import RunError
from otel_torchdist.model.text import readable
from otel_torchdist.show.pages.page import DATA_ID
from otel_torchdist.show.report.document import MARKER, Conclusion, Heading, PastStall
from otel_torchdist.system.files.others import read_part, read_regular, reason

MAX_FILE_BYTES: Final = 64 << 20
MAX_BYTES: Final = 256 << 20
"""Upper bound on the unpacked data."""
_HEAD_BYTES: Final = 256
_DATA: Final = re.compile(rb'<script type="text/plain" id="' + DATA_ID.encode() + rb'">([A-Za-z0-9+/=]*)</script>')
_GZIP: Final = 16 + zlib.MAX_WBITS


class ReportConclusions(msgspec.Struct, frozen=True):
    """The parts of a report that state results; its figures and timeline are left out.

    Attributes:
        heading: Its subject: run, place, times, number of ranks.
        conclusions: The conclusions of `diagnose` when the report was made.
        incidents: Long waits that had ended, the longest first.
        differences: Calls whose counts differ between members of a group, a sentence each.
        advice: Advice, by decreasing gain.
        notes: Parts that could not be read, with reasons.
    """

    heading: Heading
    conclusions: tuple[Conclusion, ...]
    incidents: tuple[PastStall, ...]
    differences: tuple[str, ...]
    advice: tuple[AdviceResult, ...]
    notes: tuple[str, ...]


def is_report(path: Path) -> bool:
    """Return whether a file was written by `analyze --html`, by its first bytes."""
    try:
        return MARKER.encode() in read_part(path, 0, _HEAD_BYTES)
    except OSError:
        return False


def read_report(path: Path) -> ReportConclusions:
    """Read the conclusions of a report.

    Raises:
        RunError: It cannot be read, or is not a report.
    """
    name = readable(str(path))
    if path.is_dir() or not is_report(path):
        raise RunError(f"{name}: not a report of `otel-torchdist analyze --html`")
    try:
        match = _DATA.search(read_regular(path, MAX_FILE_BYTES))
        packed = base64.b64decode(match[1], validate=True) if match is not None else b""
        unpacker = zlib.decompressobj(_GZIP)
        data = unpacker.decompress(packed, MAX_BYTES)
        if not unpacker.eof:
            raise RunError(f"{name}: a report that is incomplete, or larger than {MAX_BYTES >> 20} MiB")
        return msgspec.json.decode(data, type=ReportConclusions)
    except OSError as error:
        raise RunError(f"{name} cannot be read: {reason(error)}") from error
    except (binascii.Error, zlib.error, msgspec.DecodeError) as error:
        raise RunError(f"{name}: a damaged report: {error}") from error
