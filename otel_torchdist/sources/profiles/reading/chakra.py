"""Decodes Chakra's own execution traces (`.et`), into which its converter and other tools turn those of PyTorch.

A file is a series of messages of protobuf, each behind its length: one with the version, then one for each node. The
converter writes the inputs of a node of PyTorch as the text of Python lists. The fields are those of MLCommons'
`et_def.proto`; others are ignored.
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
from otel_torchdist.sources.profiles.reading.trace_nodes import Attribute, Inputs, Node, Nodes, matters

MAX_MESSAGE: Final = 16 << 20
"""Bytes of a node."""
MAX_TEXT: Final = 1 << 18
"""Characters of a node's inputs that are parsed."""
_PYTHON: Final = re.compile(
    r"""(?P<quote>['"])(?P<string>(?:(?!(?P=quote))[^\\]|\\.)*)(?P=quote)|['"].*|-?\b(?:inf|nan)\b|\b(?:True|False|None)\b""",
    re.DOTALL,
)
"""What Python writes in another way than JSON."""
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
        content: The whole file, unpacked.
        path: Where it was read.
        rank: The rank that its name states, if it does.

    Returns:
        The trace, and what is wrong with the file, or ''.

    Raises:
        TraceError: It is none, or does not show of which rank it is.
    """
    head_of, node_of = _classes()
    head, nodes, damage = head_of(), Nodes(), ""
    messages = _messages_in(content)
    try:
        head.ParseFromString(next(messages))
        for message in messages:
            _add(nodes, node_of, message)
    except DecodeError as error:
        raise TraceError("it is no execution trace of Chakra") from error
    except EOFError:
        damage = CUT_OFF
    process = _attributes(head).get("pid", 0)
    return nodes.trace(path, rank, process if isinstance(process, int) else 0), damage


def _add(nodes: Nodes, node_of: Any, message: bytes) -> None:
    try:
        node = node_of.FromString(message)
        if matters(node.name):
            nodes.add(_decoded(node))
    except (DecodeError, ValueError, OverflowError, RecursionError) as error:
        nodes.leave_out(error)


def _messages_in(content: bytes) -> Iterator[bytes]:
    """Yield the messages.

    Raises:
        EOFError: The last one is cut off, or claims to be larger than a node can be.
    """
    view, place = memoryview(content), 0
    while place < len(view):
        size, place = _size_at(view, place)
        if size > min(MAX_MESSAGE, len(view) - place):
            raise EOFError
        yield bytes(view[place : place + size])
        place += size


def _size_at(view: memoryview, place: int) -> tuple[int, int]:
    """Decode the length of a message; returns it, and where the message begins."""
    size = 0
    for shift, byte in zip(range(0, 35, 7), view[place : place + 5], strict=False):
        size |= (byte & 0x7F) << shift
        place += 1
        if byte < 0x80:
            return size, place
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
    """Parse the text of a Python list of what JSON can hold.

    `ast.literal_eval` would do, but long or deep texts crash the interpreter in it.

    Raises:
        ValueError: It is too long, or no such list.
    """
    if not text:
        return []
    if len(text) > MAX_TEXT:
        raise ValueError(f"inputs of {len(text):,} characters")
    return msgspec.json.decode(_PYTHON.sub(_as_json, text), type=list[Any])


def _as_json(found: re.Match[str]) -> str:
    word = found[0]
    if found["string"] is not None:
        return json.dumps(_ESCAPE.sub(_unescaped, found["string"]))
    if word[0] in "'\"":
        raise ValueError("a text without an end")
    return _WORDS.get(word, "null")


def _unescaped(found: re.Match[str]) -> str:
    what = found[1]
    return chr(int(what[1:], 16)) if len(what) > 1 else _ESCAPED.get(what, what)


def _attributes(message: Any) -> dict[str, Any]:
    """The attributes that are numbers or texts."""
    return {one.name: getattr(one, one.WhichOneof("value")) for one in message.attr if one.WhichOneof("value")}


@functools.cache
def _classes() -> tuple[Any, Any]:
    """Classes for the head and for nodes, in a pool of their own: a user may have Chakra's."""
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
