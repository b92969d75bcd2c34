"""What the plans and results of `torch.distributed.checkpoint` say about bytes, files and the storage.

Planners, writers and readers may be anybody's: what is not as torch makes it counts as unknown.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from otel_torchdist import guard
from otel_torchdist.capture.checkpoints.texts import storage_of, text_of
from otel_torchdist.capture.torch_api import LIST

MAX_ITEMS: Final = 100_000
"""Entries of a plan that are looked at."""
_STORAGE: Final = ("storage_writer", "storage_reader")


@dataclass(frozen=True, slots=True)
class Amount:
    """How much is written or read.

    Attributes:
        message_bytes: Bytes; 0 if not known.
        files: Files; 0 if not known.
    """

    message_bytes: int = 0
    files: int = 0


NOTHING: Final = Amount()


def storage_in(function: Callable[..., Any]) -> Any:
    """The writer or reader that a stage's function refers to; None if there is none."""
    inner: Any = getattr(function, "__wrapped__", function)
    code, cells = getattr(inner, "__code__", None), getattr(inner, "__closure__", None)
    if code is None or cells is None:
        return None
    for name, cell in zip(code.co_freevars, cells, strict=False):
        if name in _STORAGE:
            try:
                return cell.cell_contents
            except ValueError:  # empty
                return None
    return None


def name_of_storage(storage: Any, path: str) -> str:
    """What a writer or reader is called; '' for None."""
    return "" if storage is None else storage_of(text_of(type(storage).__name__), path)


@guard.calls_plug_ins
def planned(plan: Any, storage: Any) -> Amount:
    """How much a rank's plan makes it write, or read from this storage."""
    try:
        items: Any = plan.items[:MAX_ITEMS]
        stored: Any = getattr(storage, "storage_data", None)
        if stored and items and hasattr(items[0], "storage_index"):
            entries = {item.storage_index: stored[item.storage_index] for item in items}.values()
            return Amount(sum(int(one.length) for one in entries), len({one.relative_path for one in entries}))
        return Amount(sum(_bytes_of(item) for item in items))
    except Exception as error:
        guard.pass_on(error)
        return NOTHING


def _bytes_of(item: Any) -> int:
    data: Any = getattr(item, "tensor_data", None)
    return 0 if data is None else math.prod(data.chunk.sizes) * int(data.properties.dtype.itemsize)


@guard.calls_plug_ins
def written(results: Any) -> Amount:
    """How much the results of `write_data` say was written."""
    try:
        if type(results) is not LIST or not results or not hasattr(results[0], "size_in_bytes"):
            return NOTHING
        files = {text_of(getattr(one.storage_data, "relative_path", None)) for one in results} - {""}
        return Amount(sum(int(one.size_in_bytes) for one in results), len(files))
    except Exception as error:
        guard.pass_on(error)
        return NOTHING
