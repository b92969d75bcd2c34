"""Decodes JSON written by other processes into types; content that does not fit is rejected as a whole."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, TypeVar

import msgspec

from otel_torchdist.errors import TorchDistError
from otel_torchdist.model.names import CallSiteName
from otel_torchdist.naming import readable

_T = TypeVar("_T")


class DecodingError(TorchDistError):
    """The bytes are not what was expected; the message gives the reason."""


def decode_json(content: str | bytes, wanted: type[_T]) -> _T:
    """Decode JSON into a type that msgspec supports, without coercing values of other types.

    The standard library parses it: msgspec rejects lone surrogates, which paths that are not UTF-8 contain.

    Raises:
        DecodingError: The content does not fit the type, or is nested too deeply.
    """
    try:
        return msgspec.convert(json.loads(content), wanted)
    except (ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise DecodingError(str(error)[:200]) from error


@dataclass(frozen=True, slots=True)
class CallSiteRead:
    """A `CallSiteName` as written in the file."""

    function: str
    file: str
    line: Annotated[int, msgspec.Meta(ge=-1, le=1 << 31)]
    through: str = ""


def shown_site(site: CallSiteRead) -> CallSiteName:
    """Return the call site with its text made safe to display."""
    return CallSiteName(readable(site.function), readable(site.file), site.line, readable(site.through))
