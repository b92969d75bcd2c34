"""Names of operations and dtypes in traces: `_allgather_base` is our `all_gather_into_tensor`."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from otel_torchdist.model.collectives import operation_named
from otel_torchdist.sources.flight.dump import dtype_name, parse_profiling_name

_NOT_CALLS: Final = frozenset({"wait", "init", "finalize", "split", "coalesced", "work_wait"})
"""Names of records that look like calls, but are not."""
_KERNEL: Final = re.compile(
    r"(?:nccl|rccl)(?:Dev)?Kernel_?(AllReduce|AllGather|ReduceScatter|Broadcast|Reduce|SendRecv)", re.IGNORECASE
)
_MESSAGE_KERNEL: Final = "sendrecv"
_MESSAGE: Final = "send_recv"
"""Operation of a kernel that sends or receives. The kernel's name does not tell which."""
_AVERAGE: Final = re.compile(r"PreMulSum|SumPostDiv", re.IGNORECASE)
_C_TYPES: Final = {
    "float": "float32", "double": "float64", "c10::Half": "float16", "c10::BFloat16": "bfloat16", "long": "int64",
    "long int": "int64", "int": "int32", "short": "int16", "short int": "int16", "signed char": "int8",
    "unsigned char": "uint8", "char": "int8", "bool": "bool", "c10::complex<float>": "complex64",
    "c10::complex<double>": "complex128", "c10::Float8_e4m3fn": "float8_e4m3fn", "c10::Float8_e5m2": "float8_e5m2",
}  # fmt: skip


@lru_cache(maxsize=1_024)
def operation_name(recorded: str) -> str:
    """Return our name of an operation; '' for a record that is not a call, such as a wait."""
    if recorded in _NOT_CALLS:
        return ""
    return parse_profiling_name(recorded).operation


@lru_cache(maxsize=1_024)
def operator_name(operator: str) -> str:
    """Return our name of the operation of an operator such as `c10d::allreduce_`; '' for other operators."""
    space, _, name = operator.partition("::")
    return operation_name(name.rstrip("_")) if space == "c10d" and name else ""


@lru_cache(maxsize=1_024)
def operation_of_kernel(kernel: str) -> str:
    """Return the operation of an NCCL or RCCL kernel; '' for other kernels, and for generic names."""
    match = _KERNEL.search(kernel)
    if match is None:
        return ""
    return _MESSAGE if match[1].lower() == _MESSAGE_KERNEL else operation_named(match[1])


def averages(kernel: str) -> bool:
    """Return whether a kernel's name proves that it averages. No name proves a sum: NCCL shares these kernels."""
    return _AVERAGE.search(kernel) is not None


def dtype_of(recorded: str) -> str:
    """Return torch's name of a dtype: `float32` for `Float`, `float` and `Tensor(float)`."""
    inner = recorded.removeprefix("Tensor(").removesuffix(")") if recorded.startswith("Tensor(") else recorded
    return _C_TYPES.get(inner) or dtype_name(inner)
