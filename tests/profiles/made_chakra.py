"""Writes execution traces as Chakra's converter does: field numbers and types are those of its `et_def.proto`."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def written(head: dict[str, Any], nodes: list[bytes]) -> bytes:
    """A whole file."""
    version = _text(1, "0.0.4")
    return b"".join(map(_delimited, [version + b"".join(_attribute(2, *one) for one in head.items()), *nodes]))


def converted(node: dict[str, Any]) -> bytes:
    """A node of PyTorch: its inputs are the text of Python lists, and its attributes are lost."""
    inputs = node["inputs"]
    texts = b"".join(_text(number, str(inputs[key])) for number, key in enumerate(("values", "shapes", "types"), 1))
    attributes = _attribute(10, "seq_id", 0) + _attribute(10, "op_schema", "")
    return (
        _number(1, node["id"]) + _text(2, node["name"]) + _number(3, 4) + _number(4, 2) + _bytes(8, texts) + attributes
    )


def write(path: Path, head: dict[str, Any], nodes: list[bytes]) -> None:
    """Write a file."""
    path.write_bytes(written(head, nodes))


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*found, value))


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _delimited(value)


def _text(field: int, value: str) -> bytes:
    return _bytes(field, value.encode())


def _attribute(field: int, name: str, value: Any) -> bytes:
    """An attribute; numbers are `int64_val`."""
    return _bytes(field, _text(1, name) + (_number(9, value) if isinstance(value, int) else _text(29, value)))


def _delimited(value: bytes) -> bytes:
    return _varint(len(value)) + value
