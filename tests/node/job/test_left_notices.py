"""A notice that was left for the launcher is written by one process, whoever is faster."""

from __future__ import annotations

from pathlib import Path

from otel_torchdist.node.job.agent_notes import leave_notice, take_notice, take_notices


def test_is_taken_once(tmp_path: Path) -> None:
    """What the launcher takes, the agent does not find any more, and the other way round."""
    leave_notice(tmp_path, 7, b"otel_torchdist: rank 1 is dead\n")
    leave_notice(tmp_path, 8, b"otel_torchdist: rank 2 is dead\n")
    assert take_notice(tmp_path, 8) == b"otel_torchdist: rank 2 is dead\n"
    assert take_notices(tmp_path) == [b"otel_torchdist: rank 1 is dead\n"]
    assert take_notice(tmp_path, 7) == b""
    assert take_notices(tmp_path) == []
    assert [*tmp_path.iterdir()] == []


def test_what_is_no_notice(tmp_path: Path) -> None:
    """A link, a file that is too large and a missing directory are not read."""
    (tmp_path / "secret").write_text("secret")
    (tmp_path / f"notice-{1:032x}").symlink_to(tmp_path / "secret")
    (tmp_path / f"notice-{2:032x}").write_bytes(bytes(4097))
    assert take_notices(tmp_path) == []
    assert take_notices(tmp_path / "missing") == []
