"""What gloo takes in place of what it does not know, so that what differs between ranks still differs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

_BY_LENGTH: Final = {
    1: ("uint8", "int8", "bool"),
    2: ("float16", "bfloat16"),
    4: ("float32", "int32"),
    8: ("float64", "int64", "complex64"),
    16: ("complex128",),
}
"""Types that gloo's collectives take, by their bytes; 16-bit integers and most unsigned ones are missing."""
_LENGTHS: Final = {
    **{name: length for length, names in _BY_LENGTH.items() for name in names},
    **{"int16": 2, "uint16": 2, "uint32": 4, "uint64": 8},
}
_REDUCE_OPS: Final = ("sum", "max", "min", "product")
"""gloo has `avg` only in the newest versions of torch, and the bitwise ones only for integers."""
_NEAREST: Final = {
    "all_gather_coalesced": "all_gather",
    "all_gather_into_tensor_coalesced": "all_gather_into_tensor",
    "all_to_all": "all_to_all_single",
    "gather_into_tensor": "gather",
    "reduce_scatter_tensor_coalesced": "reduce_scatter_tensor",
}
"""gloo has no coalesced ones except `all_reduce_coalesced`, gathers only into lists, and exchanges only equal lists."""
_ANYWHERE: Final = ("barrier", "all_reduce", "broadcast")


def bytes_of(dtype: str) -> int:
    """Bytes of an element; 1 for what is not known, which is most often one of the many types of eight bits."""
    return _LENGTHS.get(dtype, 1)


def operations(used: Iterable[str], known: frozenset[str]) -> dict[str, str]:
    """By operation of the job, that of the script: the same, the nearest one, or a barrier."""
    return _replaced(used, known, lambda name: [_NEAREST.get(name, "barrier"), *_ANYWHERE])


def dtypes(used: Iterable[str]) -> dict[str, str]:
    """By type of the job, that of the script: the same, or one of the same length."""
    known = frozenset(name for names in _BY_LENGTH.values() for name in names)
    return _replaced(used, known, lambda name: _BY_LENGTH[bytes_of(name)])


def reduce_ops(used: Iterable[str]) -> dict[str, str]:
    """By reduce op of the job, that of the script."""
    return _replaced(used, frozenset(("", *_REDUCE_OPS)), lambda name: _REDUCE_OPS)


def _replaced(used: Iterable[str], known: frozenset[str], candidates: Callable[[str], Sequence[str]]) -> dict[str, str]:
    """Replace what is not known by the first candidate that nothing else stands for, else by the first."""
    names = {*used}
    chosen = {name: name for name in sorted(names & known)}
    for name in sorted(names - known):
        possible = [one for one in candidates(name) if one in known]
        chosen[name] = next((one for one in possible if one not in chosen.values()), possible[0])
    return chosen
