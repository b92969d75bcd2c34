"""Decodes JSON of other processes into types, and the dictionary of a tape, whose lines are `crc32 json`.

Content that does not fit its type is rejected as a whole, and texts are sanitized for display.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from otel_torchdist.errors import TorchDistError
from otel_torchdist.model.names import (
    BESIDE,
    MAX_DIMENSIONS,
    MAX_FRAMES,
    MAX_NAMES,
    MAX_PARAMETERS,
    MAX_TEXT,
    OTHER,
    AtTimeout,
    CallerName,
    CallPathName,
    CallSiteName,
    GroupName,
    LabelKind,
    LabelName,
    Name,
    ParameterNames,
    RaisedName,
    SignatureName,
)
from otel_torchdist.model.text import readable
from otel_torchdist.tape.layout import MAIN_CALLER, MAX_CALLERS

_T = TypeVar("_T")


class DecodingError(TorchDistError):
    """The content cannot be decoded; the message gives the reason."""


def decode_json(content: str | bytes, wanted: type[_T]) -> _T:
    """Decode JSON into a type supported by msgspec, without coercion of values.

    The standard library parses the JSON: msgspec rejects lone surrogates, which non-UTF-8 paths contain.

    Raises:
        DecodingError: The content does not fit the type, or is nested too deeply.
    """
    try:
        return msgspec.convert(json.loads(content), wanted)
    except (ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise DecodingError(str(error)[:200]) from error


@dataclass(frozen=True, slots=True)
class CallSiteRead:
    """A `CallSiteName` in its JSON form."""

    function: str
    file: str
    line: Annotated[int, msgspec.Meta(ge=-1, le=1 << 31)]
    through: str = ""


def shown_site(site: CallSiteRead) -> CallSiteName:
    """Return the call site with its texts sanitized for display."""
    return CallSiteName(readable(site.function), readable(site.file), site.line, readable(site.through))


_Number = Annotated[int, Meta(ge=0, le=1 << 53)]
_Rank = Annotated[int, Meta(ge=0, le=1 << 31)]
_Identity = Annotated[int, Meta(gt=OTHER, le=MAX_NAMES)]


@dataclass(frozen=True, slots=True)
class _Group:
    name: str
    description: str
    ranks: tuple[_Rank, ...]
    nth: _Number
    backend: str
    aligned: bool
    epoch: Annotated[int, Meta(ge=BESIDE, le=1 << 53)] = -1
    device: str = ""
    timeout_ms: _Number = 0
    at_timeout: AtTimeout = AtTimeout.UNKNOWN
    dimensions: Annotated[tuple[str, ...], Meta(max_length=MAX_DIMENSIONS)] = ()
    world: str = ""
    world_rank: Annotated[int, Meta(ge=-1, le=1 << 31)] = -1
    address: str = ""


@dataclass(frozen=True, slots=True)
class _Signature:
    operation: str
    reduce_op: str
    shapes: tuple[tuple[_Number, ...], ...]
    dtypes: tuple[str, ...]
    device: str
    tensors: _Number


@dataclass(frozen=True, slots=True)
class _CallPath:
    call_site: _Identity
    frames: Annotated[tuple[_Identity, ...], Meta(max_length=MAX_FRAMES)]
    varies: bool


@dataclass(frozen=True, slots=True)
class _Caller:
    number: Annotated[int, Meta(gt=MAIN_CALLER, le=MAX_CALLERS)]
    function: str


@dataclass(frozen=True, slots=True)
class _Parameters:
    names: Annotated[tuple[str, ...], Meta(max_length=MAX_PARAMETERS)]


@dataclass(frozen=True, slots=True)
class _Label:
    kind: LabelKind
    unit: str
    stage: Annotated[int, Meta(ge=-1, le=1 << 31)]
    direction: str


@dataclass(frozen=True, slots=True)
class _Raised:
    type: str
    message: str
    function: str
    file: str
    line: Annotated[int, Meta(ge=0, le=1 << 31)]


@dataclass(frozen=True, slots=True)
class _Line:
    id: _Identity
    text: str | None = None
    group: _Group | None = None
    signature: _Signature | None = None
    call_site: CallSiteRead | None = None
    call_path: _CallPath | None = None
    caller: _Caller | None = None
    parameters: _Parameters | None = None
    label: _Label | None = None
    raised: _Raised | None = None


def decode_line(line: bytes) -> tuple[int, Name] | None:
    """Return id and sanitized name of a line without its newline; None for a damaged line."""
    try:
        if int(line[:8], 16) != zlib.crc32(line[9:]):
            return None
        decoded = decode_json(line[9:], _Line)
    except (ValueError, DecodingError):
        return None
    name = _name(decoded)
    return None if name is None else (decoded.id, name)


def _name(line: _Line) -> Name | None:
    """Convert a decoded line to a sanitized name."""
    if line.text is not None:
        return readable(line.text, MAX_TEXT)
    if line.group is not None:
        group = line.group
        name, description, backend = readable(group.name), readable(group.description), readable(group.backend)
        return GroupName(
            name,
            description,
            group.ranks,
            group.nth,
            backend,
            group.aligned,
            group.epoch,
            readable(group.device),
            group.timeout_ms,
            group.at_timeout,
            tuple(map(readable, group.dimensions)),
            readable(group.world, MAX_TEXT),
            group.world_rank,
            readable(group.address),
        )
    if line.signature is not None:
        signature = line.signature
        return SignatureName(
            readable(signature.operation),
            readable(signature.reduce_op),
            signature.shapes,
            tuple(map(readable, signature.dtypes)),
            readable(signature.device),
            signature.tensors,
        )
    if line.label is not None:
        label = line.label
        return LabelName(label.kind, readable(label.unit), label.stage, readable(label.direction))
    if line.call_path is not None:
        return CallPathName(line.call_path.call_site, line.call_path.frames, line.call_path.varies)
    if line.caller is not None:
        return CallerName(line.caller.number, readable(line.caller.function))
    if line.parameters is not None:
        return ParameterNames(tuple(map(readable, line.parameters.names)))
    if line.raised is not None:
        raised = line.raised
        kind, message = readable(raised.type), readable(raised.message)
        return RaisedName(kind, message, readable(raised.function), readable(raised.file), raised.line)
    return None if line.call_site is None else shown_site(line.call_site)
