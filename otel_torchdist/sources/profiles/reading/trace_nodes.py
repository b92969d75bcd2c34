"""Decodes the communication nodes of an execution trace, in either file format."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, cast

import msgspec

from otel_torchdist.model.collectives import MESSAGES, ROOTED
from otel_torchdist.model.names import DEFAULT_DESCRIPTION
from otel_torchdist.model.text import readable
from otel_torchdist.sources.profiles.names import dtype_of, operation_name, operator_name
from otel_torchdist.sources.profiles.profile import (
    NO_RANK,
    CallArguments,
    DecodedTrace,
    ProfiledCall,
    ProfiledGroup,
    ProfiledStep,
    RankProfile,
    TraceKind,
)
from otel_torchdist.sources.profiles.reading.document import MAX_REASON, TraceDocument, TraceError, decoded, items_of
from otel_torchdist.sources.profiles.reading.groups import (
    MAX_MEMBERS,
    MAX_NAME,
    configured_groups,
    group_from_arguments,
    names_by_id,
)
from otel_torchdist.sources.profiles.reading.kineto import INPUT_IS_SECOND
from otel_torchdist.sources.profiles.reading.lists import shapes_at

_GROUPS: Final = "## process_group:init ##"
_STEP: Final = "ProfilerStep#"
_RECORD: Final = "record_param_comms"
_FUNCTIONAL: Final = "_c10d_functional::"
_TENSOR: Final = re.compile(r"Tensor\(([^()]{1,64})\)")
_NAME_AT: Final = (3, 4)
"""Index of the name in the arguments of `record_param_comms`: behind the tensors if any, sequence, group and rank."""


class Inputs(msgspec.Struct, gc=False):
    """The inputs of a node: a value, a shape and a type for each argument."""

    values: list[Any] = []
    shapes: list[Any] = []
    types: list[Any] = []


class Attribute(msgspec.Struct, gc=False):
    """An attribute of a node."""

    name: str
    value: Any = None


class Node(msgspec.Struct, gc=False):
    """A node. Schema 1.1 has an object for the inputs and a list of attributes; 1.0 has them all as fields."""

    name: str = ""
    id: int = 0
    ctrl_deps: int = 0
    parent: int = 0
    inputs: Inputs | list[Any] = msgspec.field(default_factory=Inputs)
    input_shapes: list[Any] = []
    input_types: list[Any] = []
    attrs: list[Attribute] = []


def is_relevant(name: str) -> bool:
    """Return whether a node with this name concerns communication or steps."""
    return name.startswith((_RECORD, _STEP, _FUNCTIONAL, "c10d::", _GROUPS))


class Nodes:
    """The nodes of one trace for communication and steps."""

    def __init__(self) -> None:
        self._groups: list[ProfiledGroup] = []
        self._steps: dict[int, int] = {}
        self._recorded_rank: int | None = None
        self._bad_parts = 0
        self._first_fault = ""
        self._names: dict[str, str] = {}
        self._members: dict[str, tuple[int, ...]] = {}
        self._records: list[tuple[Node, CallArguments, int]] = []
        self._operators: list[Node] = []
        self._functional_groups: dict[int, str] = {}  # by the id of a functional collective's node

    def trace(self, path: str, rank: int | None, process: int) -> DecodedTrace:
        """Return the nodes as a trace.

        Args:
            path: Path of the file.
            rank: The rank in the file's name; None without one.
            process: Id of the process; 0 if unknown.

        Raises:
            TraceError: The rank is unknown.
        """
        if self._recorded_rank is not None:
            rank = self._recorded_rank  # takes precedence, since files may be renamed
        if rank is None:
            raise TraceError("neither its name nor its calls state a rank")
        sizes = [group.size for group in self._groups if group.description == DEFAULT_DESCRIPTION or group.name == "0"]
        steps = sorted(self._steps.items(), key=lambda step: step[1])
        profile = RankProfile(
            kind=TraceKind.EXECUTION,
            rank=rank,
            path=path,
            world_size=max(sizes, default=0),
            host="",
            process=process,
            newest_ns=0,
            groups=tuple(dict.fromkeys(self._groups)),
            steps=tuple(ProfiledStep(number, node_id, node_id) for number, node_id in steps),
            calls=tuple(self._calls()),
        )
        return DecodedTrace(profile, self._bad_parts, self._first_fault)

    def leave_out(self, error: Exception) -> None:
        """Count a damaged node."""
        self._bad_parts += 1
        self._first_fault = self._first_fault or readable(str(error), MAX_REASON)

    def _calls(self) -> Iterable[ProfiledCall]:
        """Yield the calls in order, with node ids for times."""
        marks = sorted((node_id, number) for number, node_id in self._steps.items())
        calls = list(self._records)
        if not calls:
            calls = [(node, self._operator_arguments(node), 0) for node in self._operators]
        calls.sort(key=lambda call: call[0].id)
        step, index = 0, 0
        for node, arguments, sequence in calls:
            while index < len(marks) and marks[index][0] <= node.id:
                step, index = marks[index][1], index + 1
            yield ProfiledCall(arguments, node.id, node.id, step=step, sequence=sequence)

    def add(self, node: Node) -> None:
        """Add a node.

        Raises:
            ValueError: The node is damaged.
        """
        if not 0 <= node.id < 1 << 62:
            raise ValueError(f"node {node.id} has an impossible id")
        if node.name == _GROUPS:
            self._add_groups(node)
        elif node.name.startswith(_STEP):
            number = node.name.removeprefix(_STEP)
            if number.isdecimal() and len(number) < 10:
                self._steps.setdefault(int(number), node.id)
        elif node.name == _RECORD:
            self._add_record(node)
        elif node.name.startswith(_FUNCTIONAL):
            texts = [value for value in _values(node) if isinstance(value, str)]
            if texts:
                self._functional_groups[node.id] = texts[-1]  # the group is the last argument
        elif operator_name(node.name):
            self._operators.append(node)

    def _add_groups(self, node: Node) -> None:
        text = next((value for value in _values(node) if isinstance(value, str)), "")
        parts = decoded(msgspec.Raw(text.encode()), list[msgspec.Raw], [])
        self._names |= names_by_id(parts)
        groups = configured_groups(parts)
        largest = max((group.size for group in groups), default=0)
        for group in groups:
            has_all_ranks = not group.ranks and group.size == largest <= MAX_MEMBERS  # a group of all ranks lists none
            group = group._replace(ranks=tuple(range(largest))) if has_all_ranks else group
            self._groups.append(group)
            self._members[group.name] = group.ranks

    def _add_record(self, node: Node) -> None:
        attributes: Mapping[str, Any] = {attribute.name: attribute.value for attribute in node.attrs}
        values = _values(node)
        name_at = next((index for index in _NAME_AT if isinstance(_item_at(values, index), str)), _NAME_AT[0])
        has_tensors = name_at == _NAME_AT[1]
        metadata = values[has_tensors:]  # without the tensors
        operation = operation_name(str(attributes.get("collective_name") or _item_at(metadata, 3) or "unknown"))
        if not operation:
            return
        name, description = _name_and_description(_item_at(metadata, 1))
        name = str(attributes.get("pg_name") or name or self._names.get(str(_item_at(metadata, 1)), ""))
        size = _integer(attributes.get("pg_size"), _integer(_item_at(metadata, -1), 0))
        start = _integer(attributes.get("global_rank_start"), _integer(_item_at(metadata, 6), NO_RANK))
        stride = _integer(attributes.get("global_rank_stride"), _integer(_item_at(metadata, 7), NO_RANK))
        description = str(attributes.get("pg_desc") or description)
        group = group_from_arguments(name, description, size, "", start, stride)
        if name:
            self._groups.append(group)
        group_rank = _integer(_item_at(metadata, 2), NO_RANK)
        has_peer = operation in MESSAGES or operation in ROOTED
        members = group.ranks or self._members.get(name, ())
        if not has_peer and 0 <= group_rank < len(members):
            self._recorded_rank = members[group_rank]
        numbers, is_message = _item_at(metadata, 0), operation in MESSAGES
        sequence = _integer(numbers[0], 0) if isinstance(numbers, list) and numbers and not is_message else 0
        elements = attributes.get("in_msg_nelems")
        shapes = shapes_at(_shapes(node), 0, _integer(elements, None)) if has_tensors else ()
        dtype = str(attributes.get("dtype") or _tensor_type(node, 0))
        arguments = CallArguments(
            operation=readable(operation, MAX_NAME),
            group=readable(name, MAX_NAME) if name else None,
            group_size=group.size,
            dtype=readable(dtype_of(dtype), MAX_NAME),
            elements=_integer(elements, None) if elements is not None else None,
            shapes=shapes,
            peer=group_rank if has_peer else NO_RANK,
        )
        self._records.append((node, arguments, max(sequence, 0)))

    def _operator_arguments(self, node: Node) -> CallArguments:
        operation = operator_name(node.name)
        index = int(operation in INPUT_IS_SECOND)
        values = _values(node)
        peer = _integer(_item_at(values, 2), NO_RANK) if operation in MESSAGES else NO_RANK
        group = self._functional_groups.get(node.ctrl_deps or node.parent)
        return CallArguments(
            operation=operation,
            group=readable(group, MAX_NAME) if group is not None else None,
            dtype=readable(_tensor_type(node, index), MAX_NAME),
            shapes=shapes_at(_shapes(node), index),
            peer=peer,
            on_device=False,
        )


def _values(node: Node) -> list[Any]:
    return node.inputs.values if isinstance(node.inputs, Inputs) else node.inputs


def _shapes(node: Node) -> list[Any]:
    return node.inputs.shapes if isinstance(node.inputs, Inputs) else node.input_shapes


def _types(node: Node) -> list[Any]:
    return node.inputs.types if isinstance(node.inputs, Inputs) else node.input_types


def _item_at(values: list[Any], index: int) -> Any:
    return values[index] if -len(values) <= index < len(values) else None


def _tensor_type(node: Node, index: int) -> str:
    """Return the dtype of an argument such as `Tensor(float)` or `GenericList[Tensor(float),…]`; '' if unknown."""
    match = _TENSOR.search(str(_item_at(_types(node), index) or ""))
    return dtype_of(match[1]) if match is not None else ""


def _name_and_description(value: Any) -> tuple[str, str]:
    """Return name and description of a group. Older traces have only the name."""
    if isinstance(value, list) and len(cast(list[Any], value)) == 2:
        name, description = cast(list[Any], value)
        return str(name), str(description)
    return (value, "") if isinstance(value, str) and not value.startswith("<") else ("", "")


def _integer(value: Any, default: Any) -> Any:
    """Return a value as an integer: some writers quote numbers."""
    if type(value) is int and abs(value) < 1 << 62:
        return value
    return int(value) if isinstance(value, str) and value.isdecimal() and len(value) < 19 else default


class _Name(msgspec.Struct, gc=False):
    name: str = ""


_NAMES: Final = msgspec.json.Decoder(_Name)
_NODES: Final = msgspec.json.Decoder(Node, strict=False)


def decode_execution_trace(document: TraceDocument, path: str, rank: int | None) -> DecodedTrace:
    """Decode an execution trace; see `decode_profile` for the arguments.

    Raises:
        TraceError: The rank is unknown.
    """
    nodes = Nodes()
    for part in items_of(document.nodes):
        try:
            if is_relevant(_NAMES.decode(part).name):
                nodes.add(_NODES.decode(part))
        except (msgspec.DecodeError, RecursionError, ValueError, OverflowError) as error:
            nodes.leave_out(error)
    return nodes.trace(path, rank, decoded(document.pid, int, 0))
