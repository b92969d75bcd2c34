"""JSON that other processes have written, decoded into types: what does not fit them is refused as a whole."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, TypeVar

import msgspec

from otel_torchdist.naming import readable
from otel_torchdist.tape.records import CallSiteName

_T = TypeVar("_T")


class DecodingError(Exception):
    """Bytes are not what they should be; the message says why."""


def decode_json(content: str | bytes, wanted: type[_T]) -> _T:
    """Decode JSON into a type that msgspec knows, without converting anything that is of another type.

    The standard library reads it: half a surrogate pair, which paths that are not UTF-8 have, is an error to msgspec.

    Raises:
        DecodingError: It is something else, or nested too deeply.
    """
    try:
        return msgspec.convert(json.loads(content), wanted)
    except (ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise DecodingError(str(error)[:200]) from error


@dataclass(frozen=True, slots=True)
class CallSiteRead:
    """A `CallSiteName` as it was written."""

    function: str
    file: str
    line: Annotated[int, msgspec.Meta(ge=-1, le=1 << 31)]


def shown_site(site: CallSiteRead) -> CallSiteName:
    """The same, as text that can be shown."""
    return CallSiteName(readable(site.function), readable(site.file), site.line)
