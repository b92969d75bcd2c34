"""What a name in the dictionary beside a tape can be, and how many and how long they may be."""

from __future__ import annotations

import enum
import hashlib
from dataclasses import dataclass
from typing import Final, TypeAlias

ROOT_UNIT: Final = "root"
"""What the unit of the outermost module, which has no name, is called."""
BESIDE: Final = -2
"""See `GroupName.epoch`."""


class AtTimeout(str, enum.Enum):
    """What becomes of the operation and of the process that waits in it; the value is that in dictionaries."""

    UNKNOWN = ""
    """The backend is not known to us, or a group has several with timeouts of their own."""
    RAISES = "raises"
    """The wait raises an error: gloo, and NCCL with `TORCH_NCCL_BLOCKING_WAIT`."""
    ENDS = "ends"
    """The backend ends the process: NCCL's watchdog as it is by default."""
    ABORTS = "aborts"
    """The backend aborts the operation, and the process goes on: `TORCH_NCCL_ASYNC_ERROR_HANDLING=2`."""
    NOTHING = "nothing"
    """Nothing: `TORCH_NCCL_ASYNC_ERROR_HANDLING=0`."""


@dataclass(frozen=True, slots=True)
class GroupName:
    """A process group as its members see it.

    Attributes:
        name: torch's name; a label that may repeat or differ between members.
        description: What the group is for (`mesh_dp`, `default_pg`), or ''.
        ranks: Global ranks of the members, ascending.
        nth: How many groups with these members this rank had created before, from 0.
        backend: Name of the backend; '' for a default group whose ranks have not reached their store yet.
        aligned: False when the group was already in use when first seen: its sequence numbers are not comparable
            across ranks.
        epoch: Number of this membership of a live group, as its members agreed when they formed it; -1 for a group
            whose members do not change, `BESIDE` for operations outside a group's collectives, counted separately.
        device: Device type, if the group has a backend of its own for each type; else ''.
        timeout_ms: The timeout of its operations in milliseconds; 0 if it is not known. After a change they refer
            to another entry.
        at_timeout: What its backend does then.
        dimensions: Names of the dimensions of device meshes that this group is for.
        world: The world that the group is of, the same text for all its members; '' for that of the default group.
            `ranks` are ranks of that world.
        here: This process's rank in that world; -1 where that is the rank of its tape.
        address: Where this rank meets the others to create the default group: `node0:29500`, a file; '' if not known.
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
    here: int = -1
    address: str = ""

    @property
    def key(self) -> str:
        """Eight hex digits that are the same on all members: from ranks, `nth`, epoch, device, world, not the name."""
        text = f"{self.nth}:{','.join(map(str, self.ranks))}"
        if self.epoch != -1:
            text += f":{self.epoch}"
        if self.device:  # operations are counted per backend
            text += f":{self.device}"
        if self.world:
            text += f"@{self.world}"
        return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()


class LabelKind(enum.Enum):
    """Which library for parallel training a call is from."""

    FSDP = "fsdp"
    DDP = "ddp"
    PIPELINE = "pipeline"


@dataclass(frozen=True, slots=True)
class LabelName:
    """What a call of a library for parallel training is for, in the words in which users know their job.

    Attributes:
        kind: The library.
        unit: The name of an FSDP unit's module; '' for the root, and for other kinds.
        stage: The stage of a pipeline; -1 for other kinds.
        direction: `fwd` or `bwd` for a pipeline; '' for other kinds.
    """

    kind: LabelKind
    unit: str = ""
    stage: int = -1
    direction: str = ""

    def text(self, piece: int = 0) -> str:
        """The label in a sentence: `FSDP layers.3`, `DDP bucket 0`, `pipeline stage 1, fwd, microbatch 2`.

        Args:
            piece: Which bucket or microbatch, from 1; 0 for none. Those are shown from 0 on, as torch counts them.
        """
        match self.kind:
            case LabelKind.FSDP:
                return f"FSDP {self.unit or ROOT_UNIT}"
            case LabelKind.DDP:
                return f"DDP bucket {piece - 1}" if piece else "DDP"
            case LabelKind.PIPELINE:
                which = f", microbatch {piece - 1}" if piece else ""
                return f"pipeline stage {self.stage}, {self.direction}{which}"


@dataclass(frozen=True, slots=True)
class CallPathName:
    """A call site as it is reached from somewhere: what records refer to.

    Attributes:
        call_site: Name id of the call site.
        frames: Name ids of the frames behind it, innermost first: lines of the program, and texts that stand for the
            frames of libraries between them.
        varies: Whether calls from there take too many paths to be told apart: this is the first of them.
    """

    call_site: int
    frames: tuple[int, ...]
    varies: bool = False


@dataclass(frozen=True, slots=True)
class CallerName:
    """What a thread runs that calls operations: threads come and go, and what they are for stays.

    Attributes:
        number: The number that records refer to: from 2 on, for the main thread has the first.
        function: The outermost function of the program that it runs, with its file: `save (train.py)`.
    """

    number: int
    function: str


@dataclass(frozen=True, slots=True)
class ParameterNames:
    """The names of parameters that are compared between replicas.

    Attributes:
        names: By their place, for as many as there is room for.
    """

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SignatureName:
    """What is the same in every rank's call of one collective.

    Attributes:
        operation: `all_reduce`, `send`, …
        reduce_op: `sum`, `avg`, …; '' where there is none.
        shapes: One tuple per tensor, for at most eight tensors.
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
        function: The function.
        file: Its file.
        line: The line; 0 if it is not known.
        through: The function of a library that was called there and made the call (`torchmetrics.gather_all_tensors`);
            '' where the line calls torch itself.
    """

    function: str
    file: str
    line: int
    through: str = ""


@dataclass(frozen=True, slots=True)
class RaisedName:
    """The exception that has ended a process.

    Attributes:
        type: Its type.
        message: The first line of what it says, cut; '' for nothing.
        function: The function of the program that has raised it, or has called the library that did; '' if not known.
        file: The file of that.
        line: The line in it.
    """

    type: str
    message: str
    function: str = ""
    file: str = ""
    line: int = 0

    @property
    def site(self) -> CallSiteName | None:
        """The line of the program; None if it is not known."""
        return CallSiteName(self.function, self.file, self.line) if self.file else None


Name: TypeAlias = (
    GroupName | SignatureName | CallSiteName | CallPathName | CallerName | LabelName | ParameterNames | RaisedName | str
)
INIT_PROCESS_GROUP: Final = "init_process_group"
NEW_GROUP: Final = "new_group"
"""Names of the operations in which ranks create the default group, and others."""
GIVEN_UP: Final = "BackendGaveUp"
"""The failure recorded by a rank whose backend has given up waiting for the others, and may end the process."""
DEFAULT_DESCRIPTION: Final = "default_pg"
"""How `init_process_group` describes the group that it creates; what makes another world by hand does not."""
OTHER: Final = 0
"""Id of an unknown name: never set, or beyond the limit."""
MAX_NAMES: Final = 8192
MAX_BYTES: Final = 4 << 20
SPARE_OF_SHAPES: Final = MAX_NAMES // 4
"""Ids that must stay free when a name with shapes is added: in some jobs these never repeat, and others matter more."""
SPARE_OF_GROUPS: Final = MAX_NAMES // 8
SPARE_OF_LABELS: Final = MAX_NAMES // 16
SPARE_OF_CALL_SITES: Final = MAX_NAMES // 32
MAX_TEXT: Final = 512
MAX_DIMENSIONS: Final = 16
MAX_FRAMES: Final = 64
"""Frames of a call path."""
MAX_PARAMETERS: Final = 4096
"""Parameters whose names are one name."""


_LABEL_BITS: Final = 16
_LABEL_MASK: Final = (1 << _LABEL_BITS) - 1
MAX_PIECE: Final = (1 << 16) - 1


def pack_label(identity: int, piece: int) -> int:
    """The word of a label: its name id, and which of its pieces (microbatches, buckets) a call is for, from 1.

    Args:
        identity: The name id, of 16 bits.
        piece: 0 for none; more than fit are none.
    """
    return identity | (piece << _LABEL_BITS if 0 <= piece <= MAX_PIECE else 0)


def unpack_label(word: int) -> tuple[int, int]:
    """Name id and piece of a label's word."""
    return word & _LABEL_MASK, word >> _LABEL_BITS
