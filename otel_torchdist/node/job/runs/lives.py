"""The state of tapes' writers (running, finished, failed or dead), and the files that record their deaths."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, Final, cast

from otel_torchdist.errors import TapeError
from otel_torchdist.model.kinds import TapeState
from otel_torchdist.model.rank_state.lives import BY_CGROUP, BY_NODE, STOPPED_STATES, Death, RankLife
from otel_torchdist.model.text import readable
from otel_torchdist.node.job.runs.membership import has_outlived_parent, is_peer
from otel_torchdist.system.files.others import read_regular
from otel_torchdist.system.files.owned import replace_at_once
from otel_torchdist.tape.reading.reader import TapeReader


def life_of(tape: TapeReader) -> RankLife:
    """Return the state of a tape's writer.

    Raises:
        TapeError: The tape is damaged.
    """
    # In this order, because a process writes its final state before it releases its lock.
    is_alive = tape.is_alive()
    state = tape.status().state
    if state is TapeState.FINISHED:
        return RankLife.FINISHED
    if state is TapeState.FAILED:
        return RankLife.FAILED
    return RankLife.RUNNING if is_alive else RankLife.DEAD


def life_after_exit(death: Death | None) -> RankLife:
    """Return the state of a rank that recorded the end of its script.

    Args:
        death: The end of its process; None if unknown.
    """
    if death is not None and death.crashed_at_exit:
        return RankLife.DEAD
    return RankLife.FAILED if death is not None and death.exited_in_error else RankLife.FINISHED


def run_of(tape: TapeReader) -> int:
    """Return the id of a tape's run; 0 if unknown."""
    try:
        return tape.status().run_id
    except TapeError:
        return 0


def is_helper(tape: TapeReader, tapes: Collection[TapeReader]) -> bool:
    """Return whether a tape's writer is a helper: a process that a rank has started and that is not a rank itself.

    Args:
        tape: The tape.
        tapes: All known tapes.
    """
    parent = tape.identity.parent
    if not parent:
        return False
    return not any(is_peer(run_of(tape), run_of(other)) for other in tapes if other.identity.nonce == parent)


def has_ended_with_parent(tape: TapeReader, tapes: Collection[TapeReader]) -> bool:
    """Return whether a tape belongs to a helper, and the rank that started it has ended too.

    Args:
        tape: The helper's tape.
        tapes: All known tapes.
    """
    if not is_helper(tape, tapes):
        return False
    running = [other.identity for other in tapes if is_running(other)]
    return has_outlived_parent(tape.identity, [other.identity for other in tapes], running)


def is_running(tape: TapeReader) -> bool:
    """Return whether the writer of a tape is running; False if the tape is damaged."""
    try:
        return life_of(tape) is RankLife.RUNNING
    except TapeError:
        return False


def waits(tape: TapeReader) -> bool:
    """Return whether a process waits for an operation, or did so when it ended."""
    return any(operation.waiting_since_ns is not None for operation in tape.open_operations())


def exited_silently(tape: TapeReader, death: Death | None) -> bool:
    """Return whether a process exited with code 0 without recording that on its tape, while it waited for nothing.

    Args:
        tape: Its tape, polled to the end.
        death: The end of the process; None if unknown.
    """
    return death is not None and death.exit_code == 0 and not waits(tape)


# --- recorded deaths --------------------------------------------------------------------------------------------------
# The death of a rank, as seen by its node's agent: a small file beside the tape, for later readers.


MAX_FILE_BYTES: Final = 4096
MAX_ERROR: Final = 200
"""Maximum characters of an exception."""
_MAX_INT: Final = 1 << 63
_NOT_STORED: Final = ("asked", "asked_ns")
"""Fields of `Death` that come from the tape."""
_OOM_VALUES: Final = ("", BY_CGROUP, BY_NODE)


def death_path(tape: Path) -> Path:
    """Return the path of the death file beside a tape."""
    return tape.with_suffix(".death")


def write_death(tape: Path, death: Death, owner: int | None = None) -> None:
    """Write or replace the death file.

    Args:
        tape: The tape.
        death: The death of its writer.
        owner: The user who must own the directory; None for this process's user.

    Raises:
        OSError: No space is left, or the directory is gone.
    """
    stored = {name: value for name, value in asdict(death).items() if name not in _NOT_STORED}
    content = json.dumps({"nonce": tape.stem, **stored}).encode()
    replace_at_once(death_path(tape), tape.with_name(f".{tape.stem}.death.new"), content, owner=owner)


def read_death(tape: Path, owner: int | None = None) -> Death | None:
    """Read the death file; None if there is none, or it is damaged.

    Args:
        tape: The tape.
        owner: The user who must own the file; None for any.
    """
    try:
        return _death_from(json.loads(read_regular(death_path(tape), MAX_FILE_BYTES, owner)), tape.stem)
    except (OSError, ValueError, RecursionError):
        return None


def _death_from(document: Any, nonce: str) -> Death | None:
    """Check every value, because another user may have written the file."""
    if not isinstance(document, dict):
        return None
    values = cast("dict[str, Any]", document)
    if values.get("nonce") != nonce:
        return None
    names = [field.name for field in fields(Death) if field.name not in _NOT_STORED]
    checked = {name: values[name] for name in names if name in values}
    numbers = [
        checked.get("at_ns"),
        *(checked.get(name, 0) for name in ("resolution_ns", "stopped_since_ns", "ran_ns")),
    ]
    if not all(type(number) is int and 0 <= number < _MAX_INT for number in numbers):
        return None
    status = checked.get("status")
    if status is not None and not (type(status) is int and 0 <= status <= 0xFFFF):
        return None
    is_known = checked.get("oom", "") in _OOM_VALUES and checked.get("stopped", "") in ("", *STOPPED_STATES)
    is_known &= all(isinstance(checked.get(name, False), bool) for name in ("with_others", "survives_sigterm"))
    texts = {name: checked.get(name, "") for name in ("error", "launcher")}
    if not is_known or not all(isinstance(text, str) for text in texts.values()):
        return None
    checked |= {name: readable(text, MAX_ERROR) for name, text in texts.items()}
    return Death(**checked)
