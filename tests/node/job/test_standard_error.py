"""How a rank finds the standard error of its job."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

RANK = """
import dataclasses, json, os
from otel_torchdist.node.job.ancestry import find_standard_error
found = find_standard_error(os.environ)
print(json.dumps(found and [found.path, [pid for pid, _ in found.holders], os.getpid()]))
"""
LAUNCHER = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]], stderr=open(sys.argv[2], 'w'))"


def find(tmp_path: Path, redirected: str, **environ: str) -> tuple[str, list[str]]:
    """What a rank finds whose launcher has redirected it: the file's name, and whose descriptor it is."""
    log = tmp_path / "launcher.log"
    with log.open("a") as stderr:
        launcher = subprocess.Popen(
            [sys.executable, "-c", LAUNCHER, RANK, str(tmp_path / redirected)],
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            env={**os.environ, **environ},
        )
        out, _ = launcher.communicate()
    path, holders, rank = json.loads(out)
    names = {rank: "rank", launcher.pid: "launcher"}
    return Path(path).name, [names[pid] for pid in holders if pid in names]


def test_inherited(tmp_path: Path) -> None:
    """What the rank shares with its launcher is the job's, and either may outlive the other."""
    assert find(tmp_path, "launcher.log") == ("launcher.log", ["rank", "launcher"])


def test_redirected_by_torchrun(tmp_path: Path) -> None:
    """People look at what torchrun writes to, not at the files into which it redirects ranks."""
    assert find(tmp_path, "rank.log", TORCHELASTIC_RUN_ID="1") == ("launcher.log", ["launcher"])


def test_redirected_by_others(tmp_path: Path) -> None:
    """The daemons of srun and mpirun write to files that nobody reads: a rank's own stderr is forwarded."""
    assert find(tmp_path, "rank.log") == ("rank.log", ["rank"])


@pytest.mark.parametrize("redirection", ["2>&-", "2</dev/null"])
def test_none(tmp_path: Path, redirection: str) -> None:
    """Where descriptor 2 is closed, or only read from, it may be any file of the program's: it is left alone."""
    script = tmp_path / "rank.py"
    script.write_text(RANK)
    found = subprocess.run(f"{sys.executable} {script} {redirection}", shell=True, stdout=subprocess.PIPE, check=True)
    assert json.loads(found.stdout) is None
