"""What a rank writes of names and call sites. Decoding checks more, and needs more: no rank imports that."""

from __future__ import annotations

import json
import zlib
from typing import Any, Final

from otel_torchdist.model.names import (
    MAX_TEXT,
    CallerName,
    CallPathName,
    CallSiteName,
    GroupName,
    LabelName,
    Name,
    ParameterNames,
    RaisedName,
    SignatureName,
)

_KINDS: Final[
    dict[
        str,
        type[
            GroupName
            | SignatureName
            | CallSiteName
            | CallPathName
            | CallerName
            | LabelName
            | ParameterNames
            | RaisedName
        ],
    ]
] = {
    "group": GroupName,
    "signature": SignatureName,
    "call_site": CallSiteName,
    "call_path": CallPathName,
    "caller": CallerName,
    "parameters": ParameterNames,
    "label": LabelName,
    "raised": RaisedName,
}


def encode_line(identity: int, name: Name) -> bytes:
    """Return the line of a name, with its newline."""
    if isinstance(name, str):
        body: dict[str, Any] = {"id": identity, "text": name[:MAX_TEXT]}
    else:
        kind = next(kind for kind, cls in _KINDS.items() if isinstance(name, cls))
        # `dataclasses.asdict` would copy a group's thousands of ranks one by one.
        body = {"id": identity, kind: {field: getattr(name, field) for field in name.__slots__}}
    text = json.dumps(body, separators=(",", ":"), default=_value_of).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


def _value_of(member: Any) -> Any:
    return member.value  # of an enum: there is nothing else that JSON lacks


def site_document(site: CallSiteName) -> dict[str, object]:
    """What `decoding.CallSiteRead` reads. `asdict` would take ten times as long, in a rank and with the GIL."""
    return {"function": site.function, "file": site.file, "line": site.line}
