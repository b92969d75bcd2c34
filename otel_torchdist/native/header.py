"""Writes `source/layout.h`, the tape's layout for the library in C++: `python -m otel_torchdist.native.header`."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Final

from otel_torchdist.model.kinds import Blame, How, RecordKind
from otel_torchdist.tape import layout

PATH: Final = Path(__file__).parent / "source" / "layout.h"
_FIELDS: Final = (
    *(("Q", "entered_ns"), ("q", "step"), ("Q", "sequence"), ("Q", "message_bytes"), ("I", "group")),
    *(("I", "signature"), ("I", "call_site"), ("I", "label"), ("i", "peer"), ("i", "tag"), ("I", "thread")),
    *(("B", "kind"), ("B", "flags"), ("B", "phase"), ("B", "caller")),
)
_TYPES: Final = {"Q": "uint64_t", "q": "int64_t", "I": "uint32_t", "i": "int32_t", "B": "uint8_t"}


def header() -> str:
    """Return the text of the header.

    Raises:
        ValueError: The payload's fields differ from `_FIELDS`.
    """
    if layout.PAYLOAD.format != "=" + "".join(kind for kind, _ in _FIELDS):
        raise ValueError(f"the payload is {layout.PAYLOAD.format}: change its fields here too")
    numbers = {
        "VERSION": layout.VERSION,
        "REFUGE_SLOTS": layout.REFUGE_SLOTS,
        "RECORD_SIZE": layout.RECORD_SIZE,
        "RING_OFFSET": layout.RING_OFFSET,
        "RECORD_WORDS": layout.RECORD_SIZE // 8,
        "RING_WORD": layout.RING_OFFSET // 8,
        "REFUGE_WORD": layout.REFUGE_OFFSET // 8,
        "PAYLOAD_WORD": layout.PAYLOAD_OFFSET // 8,
        "PAYLOAD_WORDS": layout.PAYLOAD.size // 8,
        "HEAD_WORDS": layout.PAYLOAD_HEAD.size // 8,
        "TAIL_WORDS": layout.PAYLOAD_TAIL.size // 8,
        "LABEL_OFFSET": layout.LABEL_OFFSET,
        "WORDS_WORD": layout.WORDS_OFFSET // 8,
        "WORDS": layout.WORDS,
        "CHECK_MODULUS": layout.CHECK_MODULUS,
        "CRC_MODULUS": layout.CRC_MODULUS,
        "MAX_DURATION_NS": layout.MAX_DURATION_NS,
        "BLAME_SHIFT": layout.BLAME_SHIFT,
        **_members("LIVE", layout.LiveWord),
        **_members("WORD", layout.Word),
        **_members("KIND", RecordKind),
        **_members("HOW", How),
        **_members("BLAME", Blame),
    }
    constants = "\n".join(f"constexpr {_type_of(value)} {name} = {value};" for name, value in numbers.items())
    fields = "\n".join(f"  {_TYPES[kind]} {name};" for kind, name in _FIELDS)
    return (
        "// Written by `python -m otel_torchdist.native.header` from tape/layout.py, which explains it. Do not edit.\n"
        "#pragma once\n\n#include <cstdint>\n\nnamespace otel_torchdist::layout {\n\n"
        f"{constants}\n\nstruct Payload {{\n{fields}\n}};\n\n}}  // namespace otel_torchdist::layout\n"
    )


def _members(prefix: str, enumeration: type[enum.IntEnum]) -> dict[str, int]:
    return {f"{prefix}_{member.name}": int(member) for member in enumeration}


def _type_of(value: int) -> str:
    return "int" if value < 1 << 31 else "int64_t"


if __name__ == "__main__":
    PATH.write_text(header())
