"""The advice that an adapter reads from its standard input, and its limits. Needs Python 3.10 and nothing else."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

SCHEMA: Final = 1
MAX_BYTES: Final = 1 << 20
NODES_AT_ONCE: Final = 1
NODES_A_DAY: Final = 2


class ActionError(Exception):
    """An action that was refused or has failed, with the reason in one line."""


class UnknownOutcomeError(ActionError):
    """A call without an answer: it may have had its effect."""


@dataclass(frozen=True)
class Advice:
    """What the verdict advises.

    Attributes:
        action: `drain`, `exclude` or `none`.
        reason: Why, in one line.
        hosts: Host names of the machines.
        run: First digits of the run's id.
        document: The whole document; docs/schemas has its schema.
    """

    action: str
    reason: str
    hosts: tuple[str, ...]
    run: str
    document: dict[str, Any]

    @property
    def job(self) -> dict[str, str]:
        """The names of the job that are known."""
        return {name: str(value) for name, value in self.document.get("job", {}).items() if value}


def read_advice(text: str | bytes) -> Advice:
    """Read a document.

    Raises:
        ActionError: It is none, or has another schema.
    """
    try:
        document = json.loads(text)
        machine = document["machine"]
        hosts = tuple(str(host) for host in machine["hosts"])
        advice = Advice(str(machine["action"]), str(machine["reason"]), hosts, str(document["run"])[:8], document)
    except (ValueError, KeyError, TypeError) as error:
        raise ActionError(f"the standard input is no verdict: {type(error).__name__}: {error}") from error
    if document.get("schema") != SCHEMA:
        raise ActionError(f"the verdict has schema {document.get('schema')}, not {SCHEMA}")
    return advice


def in_one_line(text: str, most: int) -> str:
    """Return a text without line ends and control characters, shortened."""
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


# --- the command line -------------------------------------------------------------------------------------------------


def parser_of(description: str) -> argparse.ArgumentParser:
    """Return a parser with the options that all adapters have."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--act", action="store_true", help="act; without it, only print what would be done")
    return parser


def add_limits(parser: argparse.ArgumentParser) -> None:
    """Add the options that limit how many nodes are taken."""
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    parser.add_argument(
        "--state", type=Path, default=Path(state) / "otel-torchdist" / "actions", metavar="DIRECTORY",
        help="remembers the nodes of the last days; share it among all nodes and jobs (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--at-once", type=int, default=NODES_AT_ONCE, metavar="N",
        help="do nothing if one verdict blames more nodes than N (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--a-day", type=int, default=NODES_A_DAY, metavar="N", help="take at most N nodes a day (default: %(default)s)"
    )


def run_adapter(adapter: Callable[[Advice], str]) -> int:
    """Run an adapter on the standard input; print its outcome in one line, and return the exit code."""
    try:
        print(in_one_line(adapter(read_advice(sys.stdin.buffer.read(MAX_BYTES))), 400))
    except ActionError as error:
        print(in_one_line(str(error), 400))
        return 1
    return 0


# --- limits -----------------------------------------------------------------------------------------------------------
# One file for each node taken today, numbered from 1. Creating a file is atomic, also on NFS, so two jobs cannot take
# the same number, and no lock is needed.


def check_at_once(advice: Advice, most: int) -> None:
    """Refuse advice on too many nodes: a fault of many machines at once is a fault of what they share.

    Raises:
        ActionError: There are more than `most`.
    """
    if len(advice.hosts) > most:
        raise ActionError(
            f"refused: the verdict blames {len(advice.hosts)} nodes ({','.join(advice.hosts)}), more than {most} at "
            f"once; look at what they share: {advice.reason}"
        )


@dataclass(frozen=True)
class Slot:
    """One of the nodes that may be taken today. As a context, it is given back if the node was surely not taken."""

    path: Path

    def __enter__(self) -> Slot:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, ActionError) and not isinstance(error, UnknownOutcomeError):
            self.path.unlink(missing_ok=True)


def take_slot(directory: Path, node: str, most: int) -> Slot:
    """Count a node as taken today.

    Args:
        directory: Where slots are kept.
        node: The node.
        most: Maximum nodes a day.

    Raises:
        ActionError: As many nodes have been taken today, or the directory cannot be written to.
    """
    today = datetime.datetime.now(datetime.timezone.utc).date()
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        _remove_old(directory, f"{today - datetime.timedelta(days=30)}")
        for number in range(1, most + 1):
            path = directory / f"{today}.{number}"
            with contextlib.suppress(FileExistsError):
                _create(path, f"{node}\n")
                return Slot(path)
    except OSError as error:
        raise ActionError(f"refused: taken nodes cannot be counted: {error}") from error
    raise ActionError(f"refused: {most} nodes have been taken today ({directory}); {node} is left alone")


def _create(path: Path, text: str) -> None:
    """Create a file, which must not exist."""
    with open(path, "x", encoding="utf-8") as stream:
        try:
            stream.write(text)
            stream.flush()
        except OSError:
            path.unlink(missing_ok=True)
            raise


def _remove_old(directory: Path, before: str) -> None:
    for path in directory.glob("????-??-??.*"):
        if path.name < before:
            path.unlink(missing_ok=True)
