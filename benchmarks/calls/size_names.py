"""Names of the calls of `sizes`, for code without torch."""

from typing import Final

TENSORS: Final = (8, 64, 512)
"""Tensors in a call; `all_gather` has as many as there are ranks."""

ALL_REDUCE: Final = "all_reduce"
FIRST_CALL: Final = "all_reduce, each of a new shape"
NEW_GROUP: Final = "new_group and its end"
ALL_GATHER: Final = "all_gather into a list"


def coalesced(tensors: int) -> str:
    """`all_reduce_coalesced` of the given number of tensors."""
    return f"all_reduce_coalesced, {tensors} tensors"
