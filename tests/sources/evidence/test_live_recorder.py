"""Dumps that `diagnose` requests through the pipes of ranks."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from otel_torchdist.sources.evidence.live_ranks import LiveProcess
from otel_torchdist.sources.evidence.live_recorder import request_dumps

USER, OTHER = 23456, 23457


@pytest.mark.process
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start processes of other users")
@pytest.mark.parametrize("owner", [USER, OTHER])
def test_pipe_of_another_user(tmp_path: Path, owner: int) -> None:
    """A rank's environment names the pipe: root writes to it only if it is of the rank's user."""
    path = tmp_path / "3.pipe"
    os.mkfifo(path)
    os.chown(path, owner, owner)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    variables = {"TORCH_FR_DEBUG_INFO_PIPE_FILE": f"{tmp_path}/"}
    with subprocess.Popen(["sleep", "60"], user=USER, group=USER, extra_groups=[]) as process:
        try:
            asked = LiveProcess(process.pid, os.getpid(), "sleep 60", 3, 3, 4, variables)
            dumps, [problem] = request_dumps([asked], wait_s=0.1)
            assert dumps == []
            if owner == USER:
                assert os.read(reader, 10) == b"1"
                assert problem == "rank 3: no dump within 0.1 s"
            else:
                assert os.read(reader, 10) == b""  # nobody has it open, and nothing is in it
                assert problem == f"rank 3: {path}: belongs to user {OTHER}, not to the rank's user"
        finally:
            process.kill()
            os.close(reader)
