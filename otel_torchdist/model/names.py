"""The kinds of names in the dictionary beside a tape, and the limits on their number and length."""

from __future__ import annotations

import enum
import hashlib
from dataclasses import dataclass
from typing import Final, TypeAlias

ROOT_UNIT: Final = "root"
"""The unit name of the outermost module, which has no name of its own."""
BESIDE: Final = -2
"""Epoch of operations outside the collectives of a reconfigurable group; see `GroupName.epoch`."""


class AtTimeout(str, enum.Enum):
    """The effect of a timeout on the operation and the waiting process. The value is the text in dictionaries."""

    UNKNOWN = ""
    """An unknown backend, or several backends with different timeouts."""
    RAISES = "raises"
    """The wait raises an error: gloo, and NCCL with `TORCH_NCCL_BLOCKING_WAIT`."""
    ENDS = "ends"
    """The backend ends the process: NCCL's watchdog by default."""
    ABORTS = "aborts"
    """The backend aborts the operation, and the process continues: `TORCH_NCCL_ASYNC_ERROR_HANDLING=2`."""
    NOTHING = "nothing"
    """Nothing: `TORCH_NCCL_ASYNC_ERROR_HANDLING=0`."""


@dataclass(frozen=True, slots=True)
class GroupName:
    """A process group as its members see it.

    Attributes:
        name: torch's name: a label that may repeat, or differ between members.
        description: torch's description of the group (`mesh_dp`, `default_pg`), or ''.
        ranks: Global ranks of the members, ascending.
        nth: Number of groups with these members that this rank had created before.
        backend: Name of the backend; '' for a default group whose ranks have not reached their store yet.
        aligned: False if the group was in use when first seen. Its sequence numbers are then not comparable across
            ranks.
        epoch: Number of the current membership of a group that can be reconfigured, agreed on by its members; -1 for
            other groups. `BESIDE` for operations outside the group's collectives, which are counted separately.
        device: Device type, if the group has a separate backend for each type; else ''.
        timeout_ms: The timeout of its operations in milliseconds; 0 if unknown. After a change, operations refer to
            another entry.
        at_timeout: The backend's reaction to a timeout.
        dimensions: Names of the mesh dimensions that this group is for.
        world: The group's world, the same text for all members; '' for the world of the default group. `ranks` are
            ranks of that world.
        world_rank: This process's rank in that world; -1 if it equals the rank of the tape.
        address: Address at which the ranks meet to create the default group (`node0:29500`, a file); '' if unknown.
    """

    name: str
    description: str
    ranks: tuple[int, ...]
    nth: int
    backend: str
    aligned: bool
    epoch: int = -1
    device: str = ""
    timeout_ms: int = 0
    at_timeout: AtTimeout = AtTimeout.UNKNOWN
    dimensions: tuple[str, ...] = ()
    world: str = ""
    world_rank: int = -1
    address: str = ""

    @property
    def key(self) -> str:
        """Eight hex digits, the same on all members: a hash of ranks, `nth`, epoch, device and world, not the name."""
        text = f"{self.nth}:{','.join(map(str, self.ranks))}"
        if self.epoch != -1:
            text += f":{self.epoch}"
        if self.device:  # operations are counted per backend
            text += f":{self.device}"
        if self.world:
            text += f"@{self.world}"
        return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()


class LabelKind(enum.Enum):
    """The libraries for parallel training whose calls are labeled."""

    FSDP = "fsdp"
    DDP = "ddp"
    PIPELINE = "pipeline"


@dataclass(frozen=True, slots=True)
class LabelName:
    """The purpose of a call by a library for parallel training, in the user's terms.

    Attributes:
        unit: The name of an FSDP unit's module; '' for the root, and for other kinds.
        stage: The stage of a pipeline; -1 for other kinds.
        direction: `fwd` or `bwd` for a pipeline; '' for other kinds.
    """

    kind: LabelKind
    unit: str = ""
    stage: int = -1
    direction: str = ""

    def text(self, piece: int = 0) -> str:
        """Return the label for a sentence: `FSDP layers.3`, `DDP bucket 0`, `pipeline stage 1, fwd, microbatch 2`.

        Args:
            piece: Number of the bucket or microbatch, from 1; 0 for none. The text counts from 0, as torch does.
        """
        match self.kind:
            case LabelKind.FSDP:
                return f"FSDP {self.unit or ROOT_UNIT}"
            case LabelKind.DDP:
                return f"DDP bucket {piece - 1}" if piece else "DDP"
            case LabelKind.PIPELINE:
                microbatch = f", microbatch {piece - 1}" if piece else ""
                return f"pipeline stage {self.stage}, {self.direction}{microbatch}"


@dataclass(frozen=True, slots=True)
class CallPathName:
    """A call site with the call path that led to it. Records refer to it.

    Attributes:
        call_site: Name id of the call site.
        frames: Name ids of the outer frames, innermost first: lines of the program, and texts that stand for the
            library frames between them.
        varies: Whether the call site has too many paths to record: this is the first of them.
    """

    call_site: int
    frames: tuple[int, ...]
    varies: bool = False


@dataclass(frozen=True, slots=True)
class CallerName:
    """The outermost function of a thread that calls operations. Thread ids change; the function stays.

    Attributes:
        number: The number in records, from 2 on: 1 is the main thread.
        function: The thread's outermost function of the program, with its file: `save (train.py)`.
    """

    number: int
    function: str


@dataclass(frozen=True, slots=True)
class ParameterNames:
    """The names of parameters that are compared between replicas.

    Attributes:
        names: By position; truncated at `MAX_PARAMETERS`.
    """

    names: tuple[str, ...]


MAX_TENSORS: Final = 8
"""Upper bound on the tensors in a signature."""


@dataclass(frozen=True, slots=True)
class SignatureName:
    """The operation, reduce op and tensors of a call, which are the same on every rank.

    Attributes:
        operation: `all_reduce`, `send`, …
        reduce_op: `sum`, `avg`, …; '' if there is none.
        shapes: One tuple per tensor, for at most `MAX_TENSORS` tensors.
        dtypes: One per tensor, or a single one when all agree.
        device: Device type.
        tensors: Number of tensors, including those not described.
    """

    operation: str
    reduce_op: str
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    device: str
    tensors: int


@dataclass(frozen=True, slots=True)
class CallSiteName:
    """The innermost frame of the user's code that led to a call, or any frame of a stack.

    Attributes:
        line: The line; 0 if unknown.
        through: The library function called at that line, which made the call (`torchmetrics.gather_all_tensors`); ''
            if the line calls torch itself.
    """

    function: str
    file: str
    line: int
    through: str = ""


@dataclass(frozen=True, slots=True)
class RaisedName:
    """The exception that ended a process.

    Attributes:
        message: The first line of the message, truncated; may be ''.
        function: The function of the program that raised the exception or called the library that did; '' if unknown.
        file: The function's file.
    """

    type: str
    message: str
    function: str = ""
    file: str = ""
    line: int = 0

    @property
    def site(self) -> CallSiteName | None:
        """The line of the program; None if unknown."""
        return CallSiteName(self.function, self.file, self.line) if self.file else None


Name: TypeAlias = (
    GroupName | SignatureName | CallSiteName | CallPathName | CallerName | LabelName | ParameterNames | RaisedName | str
)
INIT_PROCESS_GROUP: Final = "init_process_group"
"""Name of the operation that creates the default group."""
NEW_GROUP: Final = "new_group"
"""Name of the operation that creates any other group."""
GIVEN_UP: Final = "BackendGaveUp"
"""The failure recorded by a rank whose backend stopped waiting for the others. The backend may end the process."""
DEFAULT_DESCRIPTION: Final = "default_pg"
"""The description that `init_process_group` gives its group. Standalone process groups lack it."""
OTHER: Final = 0
"""Id of an unknown name: never set, or beyond `MAX_NAMES`."""
MAX_NAMES: Final = 8192
MAX_BYTES: Final = 4 << 20
SPARE_OF_SHAPES: Final = MAX_NAMES // 4
"""Ids to keep free when adding a name with shapes: in some jobs shapes never repeat, and other names matter more."""
SPARE_OF_GROUPS: Final = MAX_NAMES // 8
SPARE_OF_LABELS: Final = MAX_NAMES // 16
SPARE_OF_CALL_SITES: Final = MAX_NAMES // 32
MAX_TEXT: Final = 512
MAX_DIMENSIONS: Final = 16
MAX_FRAMES: Final = 64
"""Upper bound on the frames of a call path."""
MAX_PARAMETERS: Final = 4096
"""Upper bound on the parameters in a `ParameterNames`."""


_LABEL_BITS: Final = 16
_LABEL_MASK: Final = (1 << _LABEL_BITS) - 1
MAX_PIECE: Final = (1 << 16) - 1


def pack_label(identity: int, piece: int) -> int:
    """Pack a label's name id and a piece (microbatch or bucket, from 1) into one word.

    Args:
        identity: The name id, of 16 bits.
        piece: 0 for none. A number above `MAX_PIECE` is dropped.
    """
    return identity | (piece << _LABEL_BITS if 0 <= piece <= MAX_PIECE else 0)


def unpack_label(word: int) -> tuple[int, int]:
    """Unpack the name id and the piece of a label's word."""
    return word & _LABEL_MASK, word >> _LABEL_BITS
