"""The names that torch's profiler gives to the operations of c10d."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

SCHEMAS = {
    "c10d::allreduce_": "all_reduce",
    "c10d::allgather_": "all_gather",
    "c10d::_allgather_base_": "all_gather_into_tensor",
    "c10d::reduce_scatter_": "reduce_scatter",
    "c10d::_reduce_scatter_base_": "reduce_scatter_tensor",
    "c10d::alltoall_": "all_to_all",
    "c10d::alltoall_base_": "all_to_all_single",
    "c10d::barrier": "barrier",
    "c10d::monitored_barrier_": "monitored_barrier",
    "c10d::broadcast_": "broadcast",
    "c10d::reduce_": "reduce",
    "c10d::gather_": "gather",
    "c10d::gather_into_tensor_": "gather_into_tensor",
    "c10d::scatter_": "scatter",
    "c10d::allreduce_coalesced_": "all_reduce_coalesced",
    "c10d::allgather_coalesced_": "all_gather_coalesced",
    "c10d::allgather_into_tensor_coalesced_": "all_gather_into_tensor_coalesced",
    "c10d::reduce_scatter_tensor_coalesced_": "reduce_scatter_tensor_coalesced",
    "c10d::send": "send",
    "c10d::recv_": "recv",
    "c10d::recv_any_source_": "recv",
}
"""torch's names in the dispatcher, written out here: the code under test derives its own."""


def names_of(issued: Mapping[str, int]) -> Counter[str]:
    """The number of operations of each name, from how often the profiler saw each schema."""
    names: Counter[str] = Counter()
    for schema, count in issued.items():
        names[SCHEMAS[schema]] += count
    return names
