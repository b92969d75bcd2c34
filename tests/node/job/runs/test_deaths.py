"""The file about a rank's death: what is written comes back, and content that others wrote does no harm."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from otel_torchdist.model.rank_state.lives import Death
from otel_torchdist.node.job.leftovers import clean_up
from otel_torchdist.node.job.runs.lives import death_path, read_death, write_death

NONCE = "00000000deadbeef"
DEATH = Death(123, 0, 9, "cgroup", "T", 100)


@pytest.fixture
def tape(tmp_path: Path) -> Path:
    """The path of a tape."""
    return tmp_path / f"{NONCE}.tape"


def test_there_and_back(tape: Path) -> None:
    """Every field comes back; the newest file counts, and nothing else is left in the directory."""
    write_death(tape, Death(123))
    write_death(tape, DEATH)
    assert read_death(tape) == DEATH
    assert [path.name for path in tape.parent.iterdir()] == [f"{NONCE}.death"]
    assert death_path(tape).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("status", "signal_name", "exit_code"),
    [
        (9, "SIGKILL", None),
        (139, "SIGSEGV", None),
        (3 << 8, "", 3),
        (0, "", 0),
        (None, "", None),
        (50, "signal 50", None),
    ],
)
def test_status(status: int | None, signal_name: str, exit_code: int | None) -> None:
    """The meaning of a wait status; 139 is a segmentation fault with a core dump, and 50 a signal without a name."""
    death = Death(1, status=status)
    assert (death.signal_name, death.exit_code) == (signal_name, exit_code)


@pytest.mark.parametrize(("code", "is_error"), [(0, False), (1, True), (127, True), (128, False), (143, False)])
def test_error_code(code: int, is_error: bool) -> None:
    """Codes from 128 on are those of programs that handle a signal."""
    assert Death(1, status=code << 8).exited_in_error == is_error
    assert not Death(1, status=code).exited_in_error, "ended by a signal, or cleanly"


@pytest.mark.parametrize(("launcher", "code", "is_error"), [("raylet", 1, False), ("raylet", 3, True), ("pt", 1, True)])
def test_worker_that_ray_ends(launcher: str, code: int, is_error: bool) -> None:
    """Ray ends its workers with exit code 1, also after a successful training: only another code is an error."""
    death = Death(1, status=code << 8, launcher=launcher)
    assert (death.exited_in_error, death.is_killed_by_ray) == (is_error, not is_error)


@pytest.mark.parametrize(
    "change",
    [
        {"nonce": "0" * 16},
        {"at_ns": "soon"},
        {"at_ns": -1},
        {"at_ns": 1 << 70},
        {"at_ns": True},
        {"resolution_ns": None},
        {"status": 1 << 20},
        {"status": "SIGKILL"},
        {"oom": "\x1b[31m"},
        {"stopped": ["T"]},
        {"stopped": "Tt"},
        {"stopped_since_ns": 1e300},
    ],
)
def test_values_of_others(tape: Path, change: dict[str, Any]) -> None:
    """A file with an impossible value is ignored."""
    write_death(tape, DEATH)
    found = json.loads(death_path(tape).read_text())
    death_path(tape).write_text(json.dumps(found | change))
    assert read_death(tape) is None


def test_signal_is_taken_from_the_tape_only(tape: Path) -> None:
    """The signal that had asked a rank to end is not in the file, and one that another user has written is ignored."""
    write_death(tape, replace(DEATH, asked=15, asked_ns=1))
    found = json.loads(death_path(tape).read_text())
    assert found.keys().isdisjoint({"asked", "asked_ns"})
    death_path(tape).write_text(json.dumps(found | {"asked": "\x1b[31m", "asked_ns": "x"}))
    assert read_death(tape) == DEATH


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"null", b"[" * 4000, b"{}", b" " * 5000 + b"{}"])
def test_content_of_others(tape: Path, content: bytes) -> None:
    """A file that is not JSON, or too long, is ignored."""
    death_path(tape).write_bytes(content)
    assert read_death(tape) is None


def test_files_of_others(tape: Path) -> None:
    """A pipe does not block the reader, and a link is not followed."""
    os.mkfifo(death_path(tape))
    assert read_death(tape) is None
    death_path(tape).unlink()
    other = tape.with_name("0000000000000001.tape")
    write_death(other, DEATH)
    death_path(tape).symlink_to(death_path(other))
    assert read_death(tape) is None
    write_death(tape, DEATH)  # replaces the link
    assert read_death(tape) == DEATH


def test_goes_with_its_tape(tmp_path: Path) -> None:
    """A death file without a tape is cleaned up."""
    job = tmp_path / "job-0123456789abcdef"
    job.mkdir()
    write_death(job / f"{NONCE}.tape", DEATH)
    clean_up(tmp_path, 100, 1 << 30)
    assert not death_path(job / f"{NONCE}.tape").exists()
