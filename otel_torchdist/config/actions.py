"""Actions on stalls and findings, and their lists in settings."""

from __future__ import annotations

import enum
import re
from typing import Final, NamedTuple

TARGET: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
"""Matches a function, as `module:name`."""


class ActionKind(enum.Enum):
    """The kinds of actions; the value is the word in the setting."""

    LOG = "log"
    """A warning in the log, which is always written."""
    DUMP = "dump"
    """A bundle of evidence from each node."""
    ABORT = "abort"
    """End the ranks, so that the launcher starts them again."""
    COMMAND = "command"
    """Run a user's program."""
    CALLBACK = "callback"
    """Call a user's function."""
    RESCUE = "rescue"
    """Call a user's function in each rank, which saves its state."""


class Action(NamedTuple):
    """One action on a stall.

    Attributes:
        kind: Its kind.
        target: The command line, or `module:function`; '' for the other kinds.
    """

    kind: ActionKind
    target: str = ""

    @property
    def is_local(self) -> bool:
        """Whether every node performs the action. Other actions are performed once for the run."""
        return self.kind in (ActionKind.DUMP, ActionKind.ABORT, ActionKind.RESCUE)


def parse_actions(text: str) -> tuple[Action, ...]:
    """Parse a list such as `dump,abort` or `callback:alarm:ring,command:/usr/bin/page --team training, infra`.

    Raises:
        ValueError: A word is not an action, a function is not `module:function`, a command is empty, or ranks would be
            rescued after they have been ended.
    """
    actions: list[Action] = []
    remaining = text.strip()
    while remaining:
        if remaining.startswith("command:"):  # a command may contain commas, so it is the last action
            word, remaining = remaining, ""
        else:
            word, _, remaining = (part.strip() for part in remaining.partition(","))
        actions.append(_action(word))
    kinds = [action.kind for action in actions]
    if ActionKind.ABORT in kinds and ActionKind.RESCUE in kinds[kinds.index(ActionKind.ABORT) :]:
        raise ValueError("rescue after abort")
    return tuple(dict.fromkeys(actions))


def parse_finding_actions(text: str) -> tuple[Action, ...]:
    """Parse a list of actions on findings: as on stalls, but without `rescue`, which requires waiting ranks.

    Raises:
        ValueError: As for `parse_actions`, or the list contains `rescue`.
    """
    actions = parse_actions(text)
    if any(action.kind is ActionKind.RESCUE for action in actions):
        raise ValueError("rescue")
    return actions


def _action(word: str) -> Action:
    name, _, target = (part.strip() for part in word.partition(":"))
    kind = ActionKind(name)
    takes_target = kind in (ActionKind.COMMAND, ActionKind.CALLBACK, ActionKind.RESCUE)
    if takes_target != bool(target):
        raise ValueError(word)
    if kind in (ActionKind.CALLBACK, ActionKind.RESCUE) and not TARGET.fullmatch(target):
        raise ValueError(word)
    return Action(kind, target)
