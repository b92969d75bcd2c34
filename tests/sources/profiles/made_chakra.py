"""Writes execution traces as Chakra's converter does: field numbers and types are those of its `et_def.proto`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from otel_torchdist.telemetry.protobuf import block, number, text, varint


def written(head: dict[str, Any], nodes: list[bytes]) -> bytes:
    """A whole file."""
    version = text(1, "0.0.4")
    return b"".join(map(_delimited, [version + b"".join(_attribute(2, *one) for one in head.items()), *nodes]))


def converted(node: dict[str, Any]) -> bytes:
    """A node of PyTorch: its inputs are the text of Python lists, and its attributes are lost."""
    inputs = node["inputs"]
    texts = b"".join(text(at, str(inputs[key])) for at, key in enumerate(("values", "shapes", "types"), 1))
    attributes = _attribute(10, "seq_id", 0) + _attribute(10, "op_schema", "")
    return number(1, node["id"]) + text(2, node["name"]) + number(3, 4) + number(4, 2) + block(8, texts) + attributes


def write(path: Path, head: dict[str, Any], nodes: list[bytes]) -> None:
    """Write a file."""
    path.write_bytes(written(head, nodes))


def _attribute(field: int, name: str, value: Any) -> bytes:
    """An attribute; numbers are `int64_val`."""
    return block(field, text(1, name) + (number(9, value) if isinstance(value, int) else text(29, value)))


def _delimited(value: bytes) -> bytes:
    return varint(len(value)) + value
