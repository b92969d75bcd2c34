"""The plan of a script: its groups, and the calls of each rank in order. Frozen data only.

Unless stated otherwise, ranks are the script's ranks: from 0 without gaps.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from otel_torchdist.errors import TorchDistError

DEFAULT_GROUP: Final = 0


class NotReproducibleError(TorchDistError):
    """No script can reproduce the verdict. The message gives the reason."""


@dataclass(frozen=True, slots=True)
class ScriptGroup:
    """A process group.

    Attributes:
        number: `DEFAULT_GROUP`, or another unique number.
        ranks: The members.
        description: Name of the job's group. May be any text.
    """

    number: int
    ranks: tuple[int, ...]
    description: str = ""


@dataclass(frozen=True, slots=True)
class Create:
    """The creation of a group.

    Attributes:
        hangs: Whether the rank hangs in it.
        site: The job's call site, as text.
    """

    group: ScriptGroup
    hangs: bool = False
    site: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class CreateExtra:
    """The creation of groups that other ranks do not create. The rank is the only member, so the creation cannot hang.

    Attributes:
        count: Number of groups.
    """

    count: int


@dataclass(frozen=True, slots=True)
class ScriptCall:
    """A call of an operation.

    Attributes:
        operation: One of `calls.OPERATIONS`.
        shapes: Shapes of the tensors that describe the call: its inputs or, for `reduce_scatter` and `scatter`, its
            outputs. For an uneven exchange: the parts sent to each member, then the parts received from each member.
        dtypes: Types of these tensors.
        reduce_op: `sum`, `max`, …; '' for `sum`, or if there is none.
        peer: Root or peer; -1 for none.
        tag: Tag of a send or receive.
        work: Number by which a later `ScriptWait` refers to the call; 0 if the call is synchronous.
        is_uneven: Whether it is an `all_to_all_single` with parts of different size.
        hangs: Whether the rank hangs in it.
        site: The job's call site, as text.
    """

    operation: str
    group: ScriptGroup
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    reduce_op: str = ""
    peer: int = -1
    tag: int = 0
    work: int = 0
    is_uneven: bool = False
    hangs: bool = False
    site: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class ScriptWait:
    """A wait for an earlier call.

    Attributes:
        work: The number of the call.
        hangs: Whether the rank hangs in it.
    """

    work: int
    hangs: bool = False


class Ending(enum.Enum):
    """The endings of ranks that do not reach the next call."""

    STAYS_AWAY = "stays away"
    EXITS = "exits"
    EXITS_AT_ONCE = "exits without any clean-up"
    RAISES = "raises an exception"
    STOPS = "stops itself"
    KILLS_ITSELF = "kills itself"


@dataclass(frozen=True, slots=True)
class End:
    """The last step of a rank.

    Attributes:
        signal: The signal with which the rank kills itself; 0 if the job's signal is unknown.
        exit_code: The code with which the rank exits at once.
        exception: The type of the exception to raise. May be any text.
        remarks: Position of the job's rank, as lines of text.
    """

    ending: Ending
    signal: int = 0
    exit_code: int = 0
    exception: str = ""
    remarks: tuple[str, ...] = field(default=(), compare=False)


Step = Create | CreateExtra | ScriptCall | ScriptWait | End


@dataclass(frozen=True, slots=True)
class Script:
    """A script that hangs as a job did.

    Attributes:
        title: Summary in one sentence.
        facts: Paragraphs of comment above the code.
        steps: Steps of each rank.
        named: The ranks that the verdict on the script must name, ascending.
        stand_for: The job's ranks that each rank of the script stands for, ascending.
        outlives_errors: Whether a rank stays alive after an error from gloo, because other backends would hang.
        sequence: Position in its group of the operation that the verdict on the script must name.
    """

    title: str
    facts: tuple[str, ...]
    steps: tuple[tuple[Step, ...], ...]
    named: tuple[int, ...]
    stand_for: Mapping[int, tuple[int, ...]]
    outlives_errors: bool
    sequence: int
