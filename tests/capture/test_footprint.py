"""The footprint of recording in a rank: imported modules and memory."""

from __future__ import annotations

import compileall
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import otel_torchdist
from otel_torchdist import environment_variables as env
from tests.support.repository import REPOSITORY

pytestmark = pytest.mark.process

WORKER = REPOSITORY / "tests" / "capture" / "workers" / "footprint.py"
GOAL_BYTES = 4_500_000 if sys.version_info < (3, 14) else 5_800_000
"""Since Python 3.14, the code of the same modules takes a quarter more memory."""
FOREIGN = ("faulthandler", "resource", "sysconfig", "_sysconfigdata_")
"""What is imported that is not ours, where torch has not imported it itself."""
ON_DEMAND = (
    "otel_torchdist.capture.core.run.peer_discovery",
    "otel_torchdist.capture.core.c10d.standalone_backends",
    "otel_torchdist.capture.parts.checkpoints.distributed",
    "otel_torchdist.capture.parts.checkpoints.files",
    "otel_torchdist.capture.core.cuda",
    "otel_torchdist.capture.tensors",
    "otel_torchdist.capture.core.requests.sampling",
    "otel_torchdist.capture.parts.rpc.workers",
    "otel_torchdist.instrumentor",
    "otel_torchdist.native",
    "otel_torchdist.tape.names.decoding",
    "otel_torchdist.tape.reading",
    "otel_torchdist.tape.records.operations",
    "otel_torchdist.telemetry",
    "otel_torchdist.judge.world",
)
"""What this rank does not use, with all that is in these packages."""


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], dict[str, Any]]:
    """Reports of a rank without recording, and of a rank recorded in Python with default settings."""
    assert otel_torchdist.__file__
    compileall.compile_dir(Path(otel_torchdist.__file__).parent, quiet=2)  # compiling takes memory, too
    ours = {
        env.OTEL_PYTHON_TORCHDIST_ENABLED: "true",
        env.OTEL_PYTHON_TORCHDIST_CAPTURE: "python",
        env.OTEL_PYTHON_TORCHDIST_TAPE_DIR: str(tmp_path_factory.mktemp("tapes", numbered=True)),
        env.OTEL_PYTHON_TORCHDIST_TAPE_ON_DISK: "true",
        env.OTEL_PYTHON_TORCHDIST_AGENT_LINGER: "0",
        env.OTEL_EXPORTER_PROMETHEUS_PORT: "0",
        "OTEL_TRACES_EXPORTER": "none",
        "LOCAL_WORLD_SIZE": "8",
    }
    # Where threads allocate at the same time, glibc gives them arenas of their own, by chance; and it grows its heap by
    # 128 KB at a time.
    environ = {**os.environ, "MALLOC_ARENA_MAX": "1", "MALLOC_TOP_PAD_": "0"}
    started = [
        subprocess.Popen([sys.executable, str(WORKER)], env=environ | more, stdout=subprocess.PIPE, text=True)
        for more in ({}, ours)
    ]
    bare, recorded = (json.loads(process.communicate(timeout=120)[0].splitlines()[-1]) for process in started)
    return bare, recorded


def test_imports(ranks: tuple[dict[str, Any], dict[str, Any]]) -> None:
    """A rank imports nothing of OpenTelemetry or other packages, and of ours only the listed modules."""
    bare, recorded = ranks
    added = set(recorded["modules"]) - set(bare["modules"])
    assert [name for name in sorted(added) if not name.startswith(("otel_torchdist.", *FOREIGN))] == []
    assert [name for name in sorted(added) if name.startswith(ON_DEMAND)] == []
    assert "otel_torchdist.capture.session" in added


def test_imports_on_demand(ranks: tuple[dict[str, Any], dict[str, Any]]) -> None:
    """The recording of checkpoints is imported with the first saved file."""
    _, recorded = ranks
    added = set(recorded["after_a_file"]) - set(recorded["modules"])
    assert "otel_torchdist.capture.parts.checkpoints.files" in added


def test_memory(ranks: tuple[dict[str, Any], dict[str, Any]]) -> None:
    """Recording takes at most 4.5 MB of private memory, including imported modules; 5.8 MB since Python 3.14."""
    bare, recorded = ranks
    assert 0 < recorded["anonymous"] - bare["anonymous"] <= GOAL_BYTES
