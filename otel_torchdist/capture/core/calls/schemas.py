"""Reads the schema of every c10d operation: the positions of its group, tensors and root."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from otel_torchdist.capture.core.torch_api import dispatcher_overloads, schema_of
from otel_torchdist.model.collectives import COLLECTIVES, EXCHANGES, MESSAGES, Contribution, Waiting, operation_named

_OUTPUTS: Final = ("output", "output_tensors")
_INPUTS: Final = ("input_tensor", "input_tensors", "input", "inputs", "input_list", "tensors", "tensor")


@dataclass(frozen=True, slots=True, eq=False, repr=False)  # compared by identity; a method takes 0.2 ms to make
class OperationSchema:
    """One c10d operation.

    Attributes:
        index: Small unique number.
        overload: The dispatcher's operation.
        name: Public name, such as `all_reduce`.
        group: Index of the process group among the arguments.
        described: Index of the tensor or list of tensors whose shapes are recorded; they are the same on every rank.
        reduce_op: Index of the reduce op, -1 if there is none.
        peer: Index of root, source or destination (a rank of the group), -1 if there is none.
        tag: Index of the tag, -1 if there is none.
        async_op: Index of the `async_op` flag, -1 if there is none.
        work: Position of the Work in the result: 0 alone, 1 in a pair, -1 if there is none.
        point_to_point: Whether it is a send or receive.
        synchronizing: Whether its end proves that every member entered it.
        received: Index of the output of an `all_to_all`; -1 for other operations.
        input_splits: Index of the split sizes of its input; -1 if it takes a list of parts.
        output_splits: Index of the split sizes of its output; -1 if it takes a list of parts.
        gathered: Index of the output of an `all_gather`, a list of lists; -1 for other operations.
        timeout: Index of the timeout of a single call; -1 if there is none.
    """

    index: int
    overload: Any
    name: str
    group: int
    described: int
    reduce_op: int
    peer: int
    tag: int
    async_op: int
    work: int
    point_to_point: bool
    synchronizing: bool
    contribution: Contribution
    received: int = -1
    input_splits: int = -1
    output_splits: int = -1
    gathered: int = -1
    timeout: int = -1


def collective_schemas(names: Iterable[str] | None = None) -> list[OperationSchema]:
    """Return the schemas of all operations of `torch.ops.c10d` that take a process group.

    Args:
        names: As for `dispatcher_overloads`.
    """
    overloads = dispatcher_overloads("c10d", names)
    schemas = [parse_schema(index, overload) for index, overload in enumerate(overloads)]
    return [schema for schema in schemas if schema is not None]


def parse_schema(index: int, overload: Any) -> OperationSchema | None:
    """Read an operation's schema. Return None if it takes no process group or no tensor."""
    schema = schema_of(overload)
    types = [str(argument.type) for argument in schema.arguments]
    positions = {argument.name: position for position, argument in enumerate(schema.arguments)}
    group = next((i for i, text in enumerate(types) if text.endswith("c10d.ProcessGroup")), None)
    described = described_argument(positions, types)
    if group is None or described is None:
        return None
    name = operation_named(schema.name.removeprefix("c10d::").strip("_"))
    row = COLLECTIVES.get(name)
    returns = [str(value.type).endswith("c10d.Work") for value in schema.returns]
    return OperationSchema(
        index=index,
        overload=overload,
        name=name,
        group=group,
        described=described,
        reduce_op=next((i for i, text in enumerate(types) if text.endswith("c10d.ReduceOp")), -1),
        peer=next((positions[key] for key in ("root_rank", "dst", "src") if key in positions), -1),
        tag=positions.get("tag", -1),
        async_op=positions.get("async_op", -1),
        work=-1 if True not in returns else int(len(returns) > 1),
        point_to_point=name in MESSAGES,
        synchronizing=row is None or row.family.waiting is Waiting.EVERYONE,
        contribution=row.contribution if row is not None else Contribution.ALL,
        received=next((positions[key] for key in _OUTPUTS if key in positions), -1) if name in EXCHANGES else -1,
        input_splits=positions.get("input_split_sizes", -1),
        output_splits=positions.get("output_split_sizes", -1),
        gathered=positions.get("output_tensors", -1) if name == "all_gather" else -1,
        timeout=positions.get("timeout", -1),
    )


def described_argument(positions: dict[str, int], types: list[str]) -> int | None:
    """Return the index of an argument whose shapes are the same on every rank.

    That is a flat input, else the output. (The input of `scatter` is not flat.)
    """
    flat = [name for name, position in positions.items() if types[position] in ("Tensor", "List[Tensor]")]
    named = next((name for name in _INPUTS if name in flat), None)
    if named is None:
        named = next(iter(flat), None)
    return None if named is None else positions[named]
