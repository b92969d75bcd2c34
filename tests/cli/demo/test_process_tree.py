"""A child process and its descendants: none outlives us, in any session and with any parent."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.commands.running import environment, processes_of

PARENT = """
import subprocess, sys, time
children = [subprocess.Popen(["sleep", "300"], start_new_session=True) for _ in range(3)]
print("ready", flush=True)
{then}
"""

SCRIPT = """
import os, select, sys, time
from pathlib import Path
from otel_torchdist.cli.demo.job import ProcessTree
tree = ProcessTree([sys.executable, "-c", sys.argv[1]], os.environ, Path(sys.argv[2]))
select.select([tree.output], [], [])
{then}
tree.stop()
"""


def run(base: Path, parent: str, script: str) -> None:
    """Run a process that starts a tree and stops it; it must end cleanly and alone."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(then=script), PARENT.format(then=parent), str(base / "err")],
        env=environment(base), capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert processes_of(base) == []


def test_stubborn_parent(base: Path) -> None:
    """A parent that ignores SIGTERM is killed, together with its children in their own sessions."""
    stubborn = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(300)"
    run(base, stubborn, "assert not tree.has_orphans")


def test_orphans(base: Path) -> None:
    """Children whose parent has already ended are found too, and are known as orphans."""
    run(base, "", "while tree.exit_code is None: time.sleep(0.01)\nassert tree.has_orphans")
