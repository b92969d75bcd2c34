"""Names of the calls in `sizes`, for code without torch."""

from typing import Final

TENSORS: Final = (8, 64, 512)
"""Tensors per call; `all_gather` has one per rank."""

ALL_REDUCE: Final = "all_reduce"
FIRST_CALL: Final = "all_reduce, each of a new shape"
NEW_GROUP: Final = "new_group and its end"
ALL_GATHER: Final = "all_gather into a list"


def coalesced(tensors: int) -> str:
    """Return the name of `all_reduce_coalesced` with the given number of tensors."""
    return f"all_reduce_coalesced, {tensors} tensors"
