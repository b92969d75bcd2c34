"""One row for each operation of `torch.distributed`: its names, who waits for whom, and the bytes it moves.

Everything that depends on an operation's name is derived from its row, once, at import.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Final

SEND: Final = "send"
RECV: Final = "recv"
BARRIER: Final = "barrier"


class Waiting(enum.Enum):
    """The ranks that cannot leave an operation before others have entered it."""

    EVERYONE = "everyone waits for the last"
    FOR_ROOT = "everyone waits for the root"
    ROOT = "the root waits for the last"
    RECEIVER = "the receiver waits for the sender"
    UNKNOWN = "not known"


class SizeRule(enum.Enum):
    """The tensors of one call that must be equally large."""

    EQUAL = enum.auto()
    """The tensors of all ranks."""
    PER_RANK = enum.auto()
    """No tensors. Each rank chooses the size of its tensor, and all members receive it."""
    PER_PAIR = enum.auto()
    """No tensors. Each rank chooses the size of its part for each member. A part may be empty."""


class Contribution(enum.Enum):
    """The bytes that a rank contributes, relative to the tensors in the call's signature."""

    ALL = enum.auto()
    NOTHING = enum.auto()
    ROOT_ONLY = enum.auto()
    TIMES_GROUP = enum.auto()
    """The signature describes one member's share of the input."""
    ROOT_TIMES_GROUP = enum.auto()


class CollectiveFamily:
    """A collective and its variants, such as all forms of `all_gather`. `send` and `recv` are separate families.

    Attributes:
        name: The name of the simplest variant.
        waiting: Who waits for whom.
        bus_factor: Bus bandwidth divided by algorithm bandwidth, as a function of the number of members, as in the
            functions `GetBw` of NVIDIA's nccl-tests (`doc/PERFORMANCE.md`); None if no data move.
        sent_factor: Average bytes that a member sends, divided by the bytes it contributes, with the algorithm that
            sends the fewest; None if members send nothing.
        reduces: Whether a reduce op combines the values of members.
        has_input_parts: Whether the input has a part for each member.
        has_output_parts: Whether the output has a part for each member. A call without parts works in place.
    """

    __slots__ = ("bus_factor", "has_input_parts", "has_output_parts", "name", "reduces", "sent_factor", "waiting")

    def __init__(
        self,
        name: str,
        waiting: Waiting,
        bus_factor: Callable[[int], float] | None,
        sent_factor: Callable[[int], float] | None,
        reduces: bool = False,
        has_input_parts: bool = False,
        has_output_parts: bool = False,
    ) -> None:
        self.name: Final = name
        self.waiting: Final = waiting
        self.bus_factor: Final = bus_factor
        self.sent_factor: Final = sent_factor
        self.reduces: Final = reduces
        self.has_input_parts: Final = has_input_parts
        self.has_output_parts: Final = has_output_parts

    @property
    def is_rooted(self) -> bool:
        """Whether the operation has a root."""
        match self.waiting:
            case Waiting.FOR_ROOT | Waiting.ROOT:
                return True
            case Waiting.EVERYONE | Waiting.RECEIVER | Waiting.UNKNOWN:
                return False

    @property
    def is_message(self) -> bool:
        """Whether the operation is one end of a message between two ranks."""
        return self.waiting is Waiting.RECEIVER

    @property
    def is_in_place(self) -> bool:
        """Whether input and output are the same tensors."""
        return not (self.has_input_parts or self.has_output_parts)

    @property
    def moves_data(self) -> bool:
        """Whether the operation transfers tensors."""
        return self.bus_factor is not None


class Collective:
    """An operation of `torch.distributed`.

    Attributes:
        name: Its Python function, independent of the installed torch: 2.15 also calls `all_gather_into_tensor`
            `all_gather_single`.
        recorded: Its name in the flight recorder, as `torchfrtrace` of torch 2.13 accepts it; '' if it accepts none.
        aliases: Its other names, in torch's dispatcher, the flight recorder, traces, kernels and NCCL's watchdog, in
            lower case and without leading or trailing underscores.
        sizes: The tensors that must be equally large.
        is_flat: Whether the parts are consecutive in one tensor; else each part is a tensor in a list.
    """

    __slots__ = ("aliases", "family", "is_flat", "name", "recorded", "sizes")

    def __init__(
        self,
        name: str,
        family: CollectiveFamily,
        recorded: str,
        aliases: tuple[str, ...] = (),
        sizes: SizeRule = SizeRule.EQUAL,
        is_flat: bool = False,
    ) -> None:
        self.name: Final = name
        self.family: Final = family
        self.recorded: Final = recorded
        self.aliases: Final = aliases
        self.sizes: Final = sizes
        self.is_flat: Final = is_flat

    @property
    def is_coalesced(self) -> bool:
        """Whether one call passes several tensors, or lists of tensors."""
        return self.name.endswith("_coalesced")

    @property
    def describes_share(self) -> bool:
        """Whether the signature describes one member's share of the input, which is a list."""
        return self.family.has_input_parts and not (self.family.has_output_parts or self.is_flat)

    @property
    def describes_parts(self) -> bool:
        """Whether the signature describes a tensor with a part for each member."""
        return self.family.has_input_parts and self.is_flat

    @property
    def has_input_everywhere(self) -> bool:
        """Whether all callers pass an input. A receiver passes none, and in a scatter only the root passes one."""
        return self.name != RECV and not (self.describes_share and self.family.is_rooted)

    @property
    def contribution(self) -> Contribution:
        """The bytes that a caller contributes."""
        if not self.family.moves_data or self.name == RECV:
            return Contribution.NOTHING
        if self.family.waiting is Waiting.FOR_ROOT:
            return Contribution.ROOT_TIMES_GROUP if self.describes_share else Contribution.ROOT_ONLY
        return Contribution.TIMES_GROUP if self.describes_share else Contribution.ALL


# Bandwidth factors by number of members.


def _both_ways(members: int) -> float:
    return 2 * (members - 1) / members


def _one_way(members: int) -> float:
    return (members - 1) / members


def _to_each_other(members: int) -> float:
    return members - 1


def _once(_: int) -> float:
    return 1.0


_BROADCAST: Final = CollectiveFamily("broadcast", Waiting.FOR_ROOT, _once, _one_way)
_SCATTER: Final = CollectiveFamily("scatter", Waiting.FOR_ROOT, _one_way, _one_way, has_input_parts=True)
_REDUCE: Final = CollectiveFamily("reduce", Waiting.ROOT, _once, _one_way, reduces=True)
_GATHER: Final = CollectiveFamily("gather", Waiting.ROOT, _one_way, _one_way, has_output_parts=True)
_ALL_REDUCE: Final = CollectiveFamily("all_reduce", Waiting.EVERYONE, _both_ways, _both_ways, reduces=True)
_ALL_GATHER: Final = CollectiveFamily("all_gather", Waiting.EVERYONE, _one_way, _to_each_other, has_output_parts=True)
_REDUCE_SCATTER: Final = CollectiveFamily(
    "reduce_scatter", Waiting.EVERYONE, _one_way, _one_way, reduces=True, has_input_parts=True
)
_ALL_TO_ALL: Final = CollectiveFamily(
    "all_to_all", Waiting.EVERYONE, _one_way, _one_way, has_input_parts=True, has_output_parts=True
)
_SEND: Final = CollectiveFamily(SEND, Waiting.RECEIVER, _once, _once)
_RECV: Final = CollectiveFamily(RECV, Waiting.RECEIVER, _once, None)
_BARRIER: Final = CollectiveFamily(BARRIER, Waiting.EVERYONE, None, None)
_MONITORED: Final = CollectiveFamily("monitored_barrier", Waiting.EVERYONE, None, None)
_NEW_WINDOW: Final = CollectiveFamily("new_window", Waiting.UNKNOWN, None, None)

_ROWS: Final = (
    Collective("broadcast", _BROADCAST, "broadcast", ("broadcast_oop",)),
    Collective("scatter", _SCATTER, "scatter"),
    Collective("reduce", _REDUCE, "reduce", ("reduce_oop",)),
    Collective("gather", _GATHER, "gather"),
    Collective("gather_into_tensor", _GATHER, "gather", ("gather_single",), is_flat=True),
    Collective("all_reduce", _ALL_REDUCE, "all_reduce", ("allreduce", "allreduce_sparse")),
    Collective("all_reduce_coalesced", _ALL_REDUCE, "allreduce_coalesced", ("allreduce_coalesced",)),
    Collective("all_gather", _ALL_GATHER, "all_gather", ("allgather",), SizeRule.PER_RANK),
    Collective(
        "all_gather_coalesced",
        _ALL_GATHER,
        "ALLGATHER_coalesced",  # torch 2.13 does not know `allgather_coalesced`
        ("allgather_coalesced",),
        SizeRule.PER_RANK,
    ),
    Collective(
        "all_gather_into_tensor",
        _ALL_GATHER,
        "_all_gather_base",
        ("allgather_base", "all_gather_base", "allgather_single", "all_gather_single"),
        is_flat=True,
    ),
    Collective(
        "all_gather_into_tensor_coalesced",
        _ALL_GATHER,
        "all_gather_into_tensor_coalesced",
        ("allgather_into_tensor_coalesced",),
        is_flat=True,
    ),
    Collective("reduce_scatter", _REDUCE_SCATTER, "reduce_scatter", ("reducescatter",), SizeRule.PER_PAIR),
    # Only NCCL's flight recorder uses this name, for lists with parts of different sizes.
    Collective("reduce_scatter_coalesced", _REDUCE_SCATTER, "", sizes=SizeRule.PER_PAIR),
    Collective(
        "reduce_scatter_tensor",
        _REDUCE_SCATTER,
        "_reduce_scatter_base",
        ("reduce_scatter_base", "reduce_scatter_single"),
        is_flat=True,
    ),
    Collective("reduce_scatter_tensor_coalesced", _REDUCE_SCATTER, "reduce_scatter_tensor_coalesced", is_flat=True),
    Collective("all_to_all", _ALL_TO_ALL, "all_to_all", ("alltoall",), SizeRule.PER_PAIR),
    Collective(
        "all_to_all_single",
        _ALL_TO_ALL,
        # NCCL's recorder uses this name. Under `all_to_all_single`, torch 2.13 expects equal sizes from all ranks.
        "all_to_all",
        ("alltoall_base", "alltoall_single", "all_to_allv", "all_to_all_v_single"),
        SizeRule.PER_PAIR,
        is_flat=True,
    ),
    Collective(SEND, _SEND, SEND),
    Collective(RECV, _RECV, RECV, ("recv_any_source", "recvanysource")),
    Collective(BARRIER, _BARRIER, BARRIER, ("all_reduce_barrier",)),
    Collective("monitored_barrier", _MONITORED, BARRIER),
    Collective("new_window", _NEW_WINDOW, "new_window"),
)
COLLECTIVES: Final = {row.name: row for row in _ROWS}
"""The operations of torch 2.8 to 2.15, by name."""
_NAMES: Final = {alias: row.name for row in _ROWS for alias in (row.name, *row.aliases)}


def operation_named(recorded: str) -> str:
    """Return the canonical name for any alias of an operation; unknown names are returned unchanged."""
    return _NAMES.get(recorded.strip("_").lower(), recorded)


def family_of(operation: str) -> str:
    """Return the family of an operation; unknown operations are returned unchanged."""
    row = COLLECTIVES.get(operation)
    return row.family.name if row is not None else operation


def waiting_in(operation: str) -> Waiting:
    """Return who waits for whom in an operation."""
    row = COLLECTIVES.get(operation)
    return row.family.waiting if row is not None else Waiting.UNKNOWN


def operations_where(is_wanted: Callable[[Collective], bool]) -> frozenset[str]:
    """Return the names of the operations whose rows satisfy a condition."""
    return frozenset(row.name for row in _ROWS if is_wanted(row))


ROOTED: Final = operations_where(lambda row: row.family.is_rooted)
MESSAGES: Final = operations_where(lambda row: row.family.is_message)
BARRIERS: Final = operations_where(lambda row: row.family in (_BARRIER, _MONITORED))
EXCHANGES: Final = operations_where(lambda row: row.family is _ALL_TO_ALL)
"""Operations in which each member sends a part to each other member."""
