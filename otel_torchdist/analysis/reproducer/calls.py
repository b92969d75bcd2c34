"""Writes the script's calls as Python statements, and the job's texts as Python comments and strings."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from otel_torchdist.analysis.reproducer.script import DEFAULT_GROUP, ScriptCall
from otel_torchdist.model.collectives import MESSAGES, RECV, ROOTED, Waiting, waiting_in
from otel_torchdist.model.text import readable

WIDTH: Final = 100
MAX_TEXT: Final = 2_000
"""Upper bound on the characters of one text."""


def plain(text: str) -> str:
    r"""Return a text as ASCII on one line, with all other characters escaped, such as `\n` or `\u202e`."""
    return readable(text.replace("…", "..."), MAX_TEXT).encode("ascii", "backslashreplace").decode()


def comment(text: str, indent: str = "", hanging: str = "") -> Iterator[str]:
    """Yield a text as wrapped comment lines; lines after the first begin with `hanging`.

    Python reads an encoding from a comment in the first two lines of a file, so these must be fixed text.
    """
    for line in textwrap.wrap(plain(text), WIDTH - 2 - len(indent), subsequent_indent=hanging) or [""]:
        yield f"{indent}# {line}".rstrip()


def literal(text: str) -> str:
    """Return a text as a Python string on one line."""
    written = ascii(text[:MAX_TEXT])
    return f'"{written[1:-1]}"' if not {*written[1:-1]} & {*"\"'\\"} else written


_USUAL_DTYPE: Final = "float32"


def statement(call: ScriptCall) -> list[str]:
    """Return the call, such as `dist.all_reduce(torch.ones(4), op=dist.ReduceOp.MAX)`, without later waits.

    A long call has one argument a line.
    """
    function = f"dist.{_function(call)}"
    if call.work:
        function = f"{work_variable(call.work)} = {function}"
    arguments = [*_TENSORS[call.operation](call), *_keywords(call)]
    line = f"{function}({', '.join(arguments)})"
    if len(line) <= WIDTH:
        return [line]
    return [f"{function}(", *(f"    {argument}," for argument in arguments), ")"]


def work_variable(number: int) -> str:
    """Return the variable that holds the Work of an asynchronous call."""
    return f"work_{number}"


def group_variable(number: int) -> str:
    """Return the variable that holds a group."""
    return f"group_{number}"


def _function(call: ScriptCall) -> str:
    if call.operation in MESSAGES and call.work:
        return f"i{call.operation}"
    return call.operation


def _keywords(call: ScriptCall) -> list[str]:
    """Return all arguments but the tensors: only numbers, and names from our tables, never text of the job."""
    keywords: list[str] = []
    if call.reduce_op not in ("", "sum"):
        keywords.append(f"op=dist.ReduceOp.{call.reduce_op.upper()}")
    if call.peer >= 0 and (call.operation in ROOTED or call.operation in MESSAGES):
        is_source = call.operation == RECV or waiting_in(call.operation) is Waiting.FOR_ROOT
        keywords.append(f"{'src' if is_source else 'dst'}={call.peer}")
    if call.tag:
        keywords.append(f"tag={call.tag}")
    if call.group.number != DEFAULT_GROUP:
        keywords.append(f"group={group_variable(call.group.number)}")
    if call.work and call.operation not in MESSAGES:
        keywords.append("async_op=True")
    return keywords


def _tensor(shape: tuple[int, ...], dtype: str) -> str:
    size = str(shape[0]) if len(shape) == 1 else str(tuple(shape))
    return f"torch.ones({size})" if dtype == _USUAL_DTYPE else f"torch.ones({size}, dtype=torch.{dtype})"


def _first(call: ScriptCall) -> str:
    return _tensor(call.shapes[0], call.dtypes[0])


def _first_times(call: ScriptCall, multiplied: int, divided: int = 1) -> str:
    """Return a tensor like the first, with the number of rows multiplied and divided."""
    rows, *rest = call.shapes[0] or (1,)
    return _tensor((rows * multiplied // divided, *rest), call.dtypes[0])


def _exchange(call: ScriptCall) -> list[str]:
    if not call.is_uneven:
        return [_first(call)] * 2
    members = len(call.group.ranks)
    sent, received = call.shapes[:members], call.shapes[members:]
    return [
        _joined(received, call.dtypes[0]),
        _joined(sent, call.dtypes[0]),
        f"output_split_sizes={[shape[0] for shape in received]}",
        f"input_split_sizes={[shape[0] for shape in sent]}",
    ]


def _joined(parts: Sequence[tuple[int, ...]], dtype: str) -> str:
    """Return a tensor with the rows of all parts."""
    return _tensor((sum(shape[0] for shape in parts), *parts[0][1:]), dtype)


def _list_of_all(call: ScriptCall) -> str:
    tensors = [_tensor(shape, dtype) for shape, dtype in zip(call.shapes, call.dtypes, strict=True)]
    if len(tensors) > 1 and len(set(tensors)) == 1:
        return f"[{tensors[0]} for _ in range({len(tensors)})]"
    return f"[{', '.join(tensors)}]"


def _tensor_per_member(call: ScriptCall) -> str:
    return f"[{_first(call)} for _ in range({len(call.group.ranks)})]"


def _tensors_on_root(call: ScriptCall) -> str:
    return f"{_tensor_per_member(call)} if rank == {call.peer} else None"


_TENSORS: Final[Mapping[str, Callable[[ScriptCall], list[str]]]] = MappingProxyType(
    {
        "all_gather": lambda call: [_tensor_per_member(call), _first(call)],
        "all_gather_into_tensor": lambda call: [_first_times(call, len(call.group.ranks)), _first(call)],
        "all_reduce": lambda call: [_first(call)],
        "all_reduce_coalesced": lambda call: [_list_of_all(call)],
        "all_to_all": lambda call: [_tensor_per_member(call)] * 2,
        "all_to_all_single": _exchange,
        "barrier": lambda call: [],
        "broadcast": lambda call: [_first(call)],
        "gather": lambda call: [_first(call), _tensors_on_root(call)],
        "monitored_barrier": lambda call: [],
        "recv": lambda call: [_first(call)],
        "reduce": lambda call: [_first(call)],
        "reduce_scatter": lambda call: [_first(call), _tensor_per_member(call)],
        "reduce_scatter_tensor": lambda call: [_first_times(call, 1, len(call.group.ranks)), _first(call)],
        "scatter": lambda call: [_first(call), _tensors_on_root(call)],
        "send": lambda call: [_first(call)],
    }
)
"""The tensor arguments of each operation, the output first if there is one."""
OPERATIONS: Final = frozenset(_TENSORS)
"""The operations that a script can call."""
