"""Decodes Chakra's execution traces (`.et`), which its converter and other tools make from PyTorch's.

A file is a series of length-prefixed protobuf messages: one with the version, then one per node. The converter writes
the inputs of a PyTorch node as the text of Python lists. MLCommons' `et_def.proto` defines the fields; unknown fields
are ignored.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import msgspec
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import FieldDescriptorProto
from google.protobuf.message import DecodeError

from otel_torchdist.sources.profiles.profile import DecodedTrace
from otel_torchdist.sources.profiles.reading.document import CUT_OFF, TraceError
from otel_torchdist.sources.profiles.reading.trace_nodes import Attribute, Inputs, Node, Nodes, is_relevant

MAX_MESSAGE: Final = 16 << 20
"""Upper bound on the bytes of a node."""
MAX_TEXT: Final = 1 << 18
"""Upper bound on the characters of a node's inputs."""
_PYTHON: Final = re.compile(
    r"""(?P<quote>['"])(?P<string>(?:(?!(?P=quote))[^\\]|\\.)*)(?P=quote)|['"].*|-?\b(?:inf|nan)\b|\b(?:True|False|None)\b""",
    re.DOTALL,
)
"""Tokens that Python writes differently from JSON."""
_WORDS: Final = {"True": "true", "False": "false"}
_ESCAPE: Final = re.compile(r"\\(x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8}|.)", re.DOTALL)
_ESCAPED: Final = {"n": "\n", "r": "\r", "t": "\t"}
_PACKAGE: Final = "ChakraProtoMsg"
_TEXT, _MESSAGE = FieldDescriptorProto.TYPE_STRING, FieldDescriptorProto.TYPE_MESSAGE
_UNSIGNED, _SIGNED = FieldDescriptorProto.TYPE_UINT64, FieldDescriptorProto.TYPE_INT64


class _Field(NamedTuple):
    name: str
    number: int
    type: Any
    message: str = ""
    is_list: bool = False


_MESSAGES: Final = {
    "AttributeProto": (
        _Field("name", 1, _TEXT),
        _Field("int32_val", 7, FieldDescriptorProto.TYPE_INT32),
        _Field("int64_val", 9, _SIGNED),
        _Field("uint32_val", 11, FieldDescriptorProto.TYPE_UINT32),
        _Field("uint64_val", 13, _UNSIGNED),
        _Field("string_val", 29, _TEXT),
    ),
    "IOInfo": (_Field("values", 1, _TEXT), _Field("shapes", 2, _TEXT), _Field("types", 3, _TEXT)),
    "GlobalMetadata": (_Field("version", 1, _TEXT), _Field("attr", 2, _MESSAGE, "AttributeProto", True)),
    "Node": (
        _Field("id", 1, _UNSIGNED),
        _Field("name", 2, _TEXT),
        _Field("ctrl_deps", 4, _UNSIGNED, is_list=True),
        _Field("inputs", 8, _MESSAGE, "IOInfo"),
        _Field("attr", 10, _MESSAGE, "AttributeProto", True),
    ),
}


def decode_chakra(content: bytes, path: str, rank: int | None) -> tuple[DecodedTrace, str]:
    """Decode a trace.

    Args:
        content: The whole file, decompressed.
        path: Path of the file.
        rank: The rank in its name; None without one.

    Returns:
        The trace, and the damage of the file, or ''.

    Raises:
        TraceError: It is not a Chakra trace, or its rank is unknown.
    """
    head_class, node_class = _classes()
    head, nodes, damage = head_class(), Nodes(), ""
    messages = _messages_in(content)
    try:
        head.ParseFromString(next(messages))
        for message in messages:
            _add(nodes, node_class, message)
    except DecodeError as error:
        raise TraceError("it is not an execution trace of Chakra") from error
    except EOFError:
        damage = CUT_OFF
    process = _attributes(head).get("pid", 0)
    return nodes.trace(path, rank, process if isinstance(process, int) else 0), damage


def _add(nodes: Nodes, node_class: Any, message: bytes) -> None:
    try:
        node = node_class.FromString(message)
        if is_relevant(node.name):
            nodes.add(_decoded(node))
    except (DecodeError, ValueError, OverflowError, RecursionError) as error:
        nodes.leave_out(error)


def _messages_in(content: bytes) -> Iterator[bytes]:
    """Yield the messages.

    Raises:
        EOFError: The last message is truncated, or its length exceeds `MAX_MESSAGE`.
    """
    view, offset = memoryview(content), 0
    while offset < len(view):
        size, offset = _size_at(view, offset)
        if size > min(MAX_MESSAGE, len(view) - offset):
            raise EOFError
        yield bytes(view[offset : offset + size])
        offset += size


def _size_at(view: memoryview, offset: int) -> tuple[int, int]:
    """Decode the length of a message, a varint. Return it, and the offset of the message."""
    size = 0
    for shift, byte in zip(range(0, 35, 7), view[offset : offset + 5], strict=False):
        size |= (byte & 0x7F) << shift
        offset += 1
        if byte < 0x80:
            return size, offset
    raise EOFError


def _decoded(node: Any) -> Node:
    return Node(
        name=node.name,
        id=node.id,
        ctrl_deps=node.ctrl_deps[0] if node.ctrl_deps else 0,
        inputs=Inputs(_list(node.inputs.values), _list(node.inputs.shapes), _list(node.inputs.types)),
        attrs=[Attribute(name, value) for name, value in _attributes(node).items()],
    )


def _list(text: str) -> list[Any]:
    """Parse the text of a Python list that JSON can express.

    Long or deeply nested texts crash the interpreter in `ast.literal_eval`.

    Raises:
        ValueError: The text is too long, or not such a list.
    """
    if not text:
        return []
    if len(text) > MAX_TEXT:
        raise ValueError(f"inputs of {len(text):,} characters")
    return msgspec.json.decode(_PYTHON.sub(_as_json, text), type=list[Any])


def _as_json(match: re.Match[str]) -> str:
    word = match[0]
    if match["string"] is not None:
        return json.dumps(_ESCAPE.sub(_unescaped, match["string"]))
    if word[0] in "'\"":
        raise ValueError("an unterminated string")
    return _WORDS.get(word, "null")


def _unescaped(match: re.Match[str]) -> str:
    escape = match[1]
    return chr(int(escape[1:], 16)) if len(escape) > 1 else _ESCAPED.get(escape, escape)


def _attributes(message: Any) -> dict[str, Any]:
    """Return the attributes with a number or a string."""
    return {
        attribute.name: getattr(attribute, attribute.WhichOneof("value"))
        for attribute in message.attr
        if attribute.WhichOneof("value")
    }


@functools.cache
def _classes() -> tuple[Any, Any]:
    """Return classes for the head and for nodes, in a separate pool: the user's process may have loaded Chakra's."""
    file = descriptor_pb2.FileDescriptorProto(name="et_def.proto", package=_PACKAGE, syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        if name == "AttributeProto":
            message.oneof_decl.add(name="value")
        for field in fields:
            label = FieldDescriptorProto.LABEL_REPEATED if field.is_list else FieldDescriptorProto.LABEL_OPTIONAL
            added = message.field.add(name=field.name, number=field.number, type=field.type, label=label)
            if field.message:
                added.type_name = f".{_PACKAGE}.{field.message}"
            if name == "AttributeProto" and field.name != "name":
                added.oneof_index = 0
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)  # type: ignore[no-untyped-call]
    head, node = (pool.FindMessageTypeByName(f"{_PACKAGE}.{name}") for name in ("GlobalMetadata", "Node"))
    return message_factory.GetMessageClass(head), message_factory.GetMessageClass(node)
