"""What a script does: the groups that it creates, and what each of its ranks calls, in order. Frozen data only.

Ranks are those of the script, from 0 without gaps, wherever the data does not say otherwise.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from otel_torchdist.errors import TorchDistError

DEFAULT_GROUP: Final = 0


class NotReproducibleError(TorchDistError):
    """No script can show this; the message says why."""


@dataclass(frozen=True, slots=True)
class ScriptGroup:
    """A process group.

    Attributes:
        number: `DEFAULT_GROUP`, or a number of its own.
        ranks: Its members.
        description: What the job's group was called; any text.
    """

    number: int
    ranks: tuple[int, ...]
    description: str = ""


@dataclass(frozen=True, slots=True)
class Create:
    """Creates a group.

    Attributes:
        group: The group.
        hangs: Whether the rank does not come out of it.
        site: Where the job did this, as text.
    """

    group: ScriptGroup
    hangs: bool = False
    site: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class CreateExtra:
    """Creates groups that other ranks do not create; a rank is alone in them, so it comes out.

    Attributes:
        count: How many.
    """

    count: int


@dataclass(frozen=True, slots=True)
class ScriptCall:
    """Calls an operation.

    Attributes:
        operation: As in `SignatureName`; one that `calls.py` knows.
        group: In which group.
        shapes: One for each tensor that describes the call: its input or, for `reduce_scatter` and `scatter`, its
            output. Of an uneven exchange, one for each member to which it sends, then one for each from which it
            receives.
        dtypes: One for each of these tensors.
        reduce_op: `sum`, `max`, …; '' for `sum` or where there is none.
        peer: Root or peer; -1 for none.
        tag: Tag of a send or receive.
        work: Number under which a later `ScriptWait` refers to it; 0 if it is waited for at once.
        is_uneven: Whether it is an `all_to_all_single` whose parts differ.
        hangs: Whether the rank does not come out of it.
        site: Where the job did this, as text.
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
    """Waits for an earlier call.

    Attributes:
        work: The number of the call.
        hangs: Whether the rank does not come out of it.
    """

    work: int
    hangs: bool = False


class Ending(enum.Enum):
    """What a rank does that does not come to the next call."""

    STAYS_AWAY = "stays away"
    EXITS = "exits"
    EXITS_AT_ONCE = "exits without any clean-up"
    RAISES = "raises an exception"
    STOPS = "stops itself"
    KILLS_ITSELF = "kills itself"


@dataclass(frozen=True, slots=True)
class End:
    """The last that a rank does.

    Attributes:
        ending: What that is.
        signal: With which signal it kills itself; 0 if that of the job's rank is not known.
        exit_code: With which code it exits at once.
        exception: The type of the exception that it raises; any text.
        remarks: Where the job's rank was, as lines of text.
    """

    ending: Ending
    signal: int = 0
    exit_code: int = 0
    exception: str = ""
    remarks: tuple[str, ...] = field(default=(), compare=False)


Step = Create | CreateExtra | ScriptCall | ScriptWait | End


@dataclass(frozen=True, slots=True)
class Script:
    """A script.

    Attributes:
        title: What it shows, in one sentence.
        facts: What is said above the code, a paragraph each.
        steps: For each rank what it does.
        named: The ranks that the verdict on the script must name, ascending.
        stand_for: By rank of the script, the ranks of the job that it stands for, ascending.
        outlives_errors: Whether a rank to which gloo reports an error stays, as it would hang with other backends.
        sequence: The position in its group of the operation that the verdict on the script must be about.
    """

    title: str
    facts: tuple[str, ...]
    steps: tuple[tuple[Step, ...], ...]
    named: tuple[int, ...]
    stand_for: Mapping[int, tuple[int, ...]]
    outlives_errors: bool
    sequence: int
