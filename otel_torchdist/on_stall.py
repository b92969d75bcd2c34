"""What the user wants done when a job stalls, as `OTEL_PYTHON_TORCHDIST_ON_STALL` says it."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from typing import Final

_TARGET: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


class ActionKind(enum.Enum):
    """What can be done; the value is its word in the setting."""

    LOG = "log"
    """A warning in the log, which is always given."""
    DUMP = "dump"
    """A bundle of evidence from each node."""
    ABORT = "abort"
    """End the ranks, so that the launcher starts them again."""
    COMMAND = "command"
    """Run a program of the user's."""
    CALLBACK = "callback"
    """Call a function of the user's."""


@dataclass(frozen=True, slots=True)
class Action:
    """One thing to do.

    Attributes:
        kind: What.
        target: The command line, or `module:function`; '' for the others.
    """

    kind: ActionKind
    target: str = ""

    @property
    def is_local(self) -> bool:
        """Whether every node does it for itself; the others are done once for the run."""
        return self.kind in (ActionKind.DUMP, ActionKind.ABORT)


def parse_actions(text: str) -> tuple[Action, ...]:
    """Read a list such as `dump,abort` or `callback:alarm:ring,command:/usr/bin/page --team training, infra`.

    Raises:
        ValueError: A word is none of the actions, a callback is no `module:function`, or a command is empty.
    """
    actions: list[Action] = []
    rest = text.strip()
    while rest:
        if rest.startswith("command:"):  # it may have commas of its own, so it is the last
            word, rest = rest, ""
        else:
            word, _, rest = (part.strip() for part in rest.partition(","))
        actions.append(_action(word))
    return tuple(dict.fromkeys(actions))


def _action(word: str) -> Action:
    name, _, target = (part.strip() for part in word.partition(":"))
    kind = ActionKind(name)
    takes_target = kind in (ActionKind.COMMAND, ActionKind.CALLBACK)
    if takes_target != bool(target):
        raise ValueError(word)
    if kind is ActionKind.CALLBACK and not _TARGET.fullmatch(target):
        raise ValueError(word)
    return Action(kind, target)
