"""What the recorder's names mean: `nccl:_all_gather_base` is our `all_gather_into_tensor`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

_OPERATIONS: Final = {
    "_all_gather_base": "all_gather_into_tensor",
    "_allgather_base": "all_gather_into_tensor",
    "all_gather_single": "all_gather_into_tensor",
    "_reduce_scatter_base": "reduce_scatter_tensor",
    "reduce_scatter_single": "reduce_scatter_tensor",
    "_broadcast_oop": "broadcast",
    "_reduce_oop": "reduce",
    "all_reduce_barrier": "barrier",
    "all_to_all_v_single": "all_to_all_single",
    "allreduce_coalesced": "all_reduce_coalesced",
    "allgather_coalesced": "all_gather_coalesced",
    "ALLGATHER_coalesced": "all_gather_coalesced",
    "REDUCE_SCATTER_coalesced": "reduce_scatter_coalesced",
}
_FROM_OUTPUTS: Final = frozenset({"scatter", "recv"})
"""Operations whose outputs all ranks have, while only some have inputs."""
_DTYPES: Final = {
    "Byte": "uint8", "Char": "int8", "Short": "int16", "Int": "int32", "Long": "int64", "Half": "float16",
    "Float": "float32", "Double": "float64", "ComplexHalf": "complex32", "ComplexFloat": "complex64",
    "ComplexDouble": "complex128", "Bool": "bool", "BFloat16": "bfloat16", "UInt16": "uint16", "UInt32": "uint32",
    "UInt64": "uint64", "Float8_e4m3fn": "float8_e4m3fn", "Float8_e5m2": "float8_e5m2",
    "Float8_e4m3fnuz": "float8_e4m3fnuz", "Float8_e5m2fnuz": "float8_e5m2fnuz",
}  # fmt: skip
_SENT: Final = re.compile(r"(?:send|isend) (\d{1,9})->(\d{1,9})")
_RECEIVED: Final = re.compile(r"(?:recv|irecv) (\d{1,9})<-(\d{1,9})")
COALESCED: Final = "coalesced"
"""The end of a block of coalesced calls, which are recorded one by one with the same sequence number."""
GLOO: Final = "gloo"


@dataclass(frozen=True, slots=True)
class CalledName:
    """What a `profiling_name` says.

    Attributes:
        library: `nccl`, `gloo`, `xccl`, `hccl`, …; '' if it does not say.
        operation: Our name of the operation: `all_reduce`, `send`, …
        source: Rank within the group that sends; -1 if it does not say.
        destination: Rank within the group that receives; -1 if it does not say.
    """

    library: str
    operation: str
    source: int = -1
    destination: int = -1

    @property
    def is_point_to_point(self) -> bool:
        """Whether it sends to, or receives from, one other rank."""
        return self.operation in ("send", "recv")


@lru_cache(maxsize=4_096)
def called_name(profiling_name: str) -> CalledName:
    """Read a profiling name; libraries that are not known are read in the same way."""
    library, colon, called = profiling_name.partition(":")
    if not colon:
        library, called = "", profiling_name
    sent, received = _SENT.match(called), _RECEIVED.match(called)
    if sent is not None:
        return CalledName(library, "send", int(sent[1]), int(sent[2]))
    if received is not None:
        return CalledName(library, "recv", int(received[2]), int(received[1]))
    word = called.split(" ", 1)[0]
    return CalledName(library, _OPERATIONS.get(word, word) or "unknown")


def takes_outputs(operation: str) -> bool:
    """Whether the outputs describe the call on every rank, and the inputs do not."""
    return operation in _FROM_OUTPUTS


def dtype_name(recorded: str) -> str:
    """Return torch's own name of a dtype: `float32` for `Float`."""
    return _DTYPES.get(recorded, recorded)
