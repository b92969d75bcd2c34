"""The headers and C++ functions of torch that the native library uses. torch promises none of them.

A library fits one minor version of torch. If the headers of a new version differ, the library does not build, and calls
are recorded in Python.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class TorchHeader(NamedTuple):
    """A header of torch.

    Attributes:
        path: The path that the sources include.
        symbols: What the sources use of it.
        reason: Why it is used.
    """

    path: str
    symbols: tuple[str, ...]
    reason: str


HEADERS: Final = (
    TorchHeader(
        "ATen/core/dispatch/Dispatcher.h",
        ("Dispatcher::registerImpl", "Dispatcher::findSchema", "OperatorHandle::redispatchBoxed"),
        "registers a kernel, which calls the next one",
    ),
    TorchHeader("ATen/core/ivalue.h", ("IValue", "ivalue::Future::addCallback"), "arguments, and ends of operations"),
    TorchHeader("c10/core/DispatchKeySet.h", ("DispatchKeySet::FULL_AFTER",), "removes our key from the key set"),
    TorchHeader("c10/core/Stream.h", ("Stream",), "the caller's CUDA stream"),
    TorchHeader("c10/core/UndefinedTensorImpl.h", ("UndefinedTensorImpl",), "recognizes undefined tensors"),
    TorchHeader(
        "c10/util/Exception.h",
        ("Error", "DistError", "OutOfMemoryError"),
        "the type of an exception that ends an operation",
    ),
    TorchHeader("c10/util/intrusive_ptr.h", ("intrusive_ptr",), "counts references to a Work"),
    TorchHeader(
        "torch/csrc/autograd/graph_task.h", ("get_current_graph_task_id",), "whether a backward pass makes the call"
    ),
    TorchHeader("torch/csrc/distributed/c10d/Types.hpp", ("ReduceOp",), "the reduce op of a call"),
    TorchHeader(
        "torch/csrc/distributed/c10d/Work.hpp",
        ("Work::getFuture", "Work::getFutureResult", "get_comm_profiling_name"),
        "the end of an operation, and the label of a call",
    ),
    TorchHeader(
        "torch/version.h",
        ("TORCH_VERSION", "TORCH_VERSION_MAJOR", "TORCH_VERSION_MINOR"),
        "the version that it was built for",
    ),
)


class TorchFunction(NamedTuple):
    """A C++ function that is looked up in torch's libraries, so that the native library links no CUDA.

    Attributes:
        signature: The function.
        mangled: Its name in the library.
        reason: Why it is used.
    """

    signature: str
    mangled: str
    reason: str


CURRENT_STREAM: Final = TorchFunction(
    "c10::cuda::getCurrentCUDAStream(signed char)", "_ZN3c104cuda20getCurrentCUDAStreamEa", "the caller's CUDA stream"
)
STREAM_HANDLE: Final = TorchFunction(
    "c10::cuda::CUDAStream::stream() const", "_ZNK3c104cuda10CUDAStream6streamEv", "its handle"
)
FUNCTIONS: Final = (CURRENT_STREAM, STREAM_HANDLE)
"""Without one of them, operations on CUDA devices are recorded in Python."""
