"""Runs the example on a cluster of Ray, as a user would."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from otel_torchdist.environment_variables import (
    OTEL_PYTHON_TORCHDIST_AGENT_LINGER,
    OTEL_PYTHON_TORCHDIST_RAISE_INTERNAL,
    OTEL_PYTHON_TORCHDIST_TAPE_DIR,
)
from otel_torchdist.node.job.description import JobDescription
from otel_torchdist.node.job.description_file import job_in
from otel_torchdist.node.job.directory import job_directories, tapes_in
from tests.launchers.started import needs
from tests.support.repository import REPOSITORY
from tests.support.waiting import until

EXAMPLE: Final = REPOSITORY / "examples" / "ray" / "train.py"
START_TIMEOUT_S: Final = 120.0
RUN_TIMEOUT_S: Final = 600.0
AGENT_LOG: Final = "agent.log"
ALL_ENDED: Final = "all ranks have ended; everything they recorded was exported\n"
_COLOURS: Final = re.compile(r"\x1b\[[\d;]*m")
_VERDICT: Final = re.compile(r"otel_torchdist: (?!details: )(.*)")
_HOST: Final = """\
import sys, ray
context = ray.init(num_cpus=4, include_dashboard=False, object_store_memory=100 << 20, _temp_dir=sys.argv[1])
print(context.address_info["gcs_address"], flush=True)
sys.stdin.read()
"""
_WITHOUT_PARSER: Final = 'raise ImportError("not here")\n'
"""Replaces a module that jsonschema imports if it finds it: with it, each of Ray's processes starts 1.4 s later."""


@dataclass(frozen=True)
class RayJob:
    """A program that has ended, and what it has recorded.

    Attributes:
        code: Its exit code.
        output: Standard output and standard error, without colours.
        tapes: The base directory of its tapes.
    """

    code: int
    output: str
    tapes: Path

    @property
    def verdicts(self) -> list[str]:
        """The announced verdicts, as the user sees them."""
        return _VERDICT.findall(self.output)

    @property
    def directories(self) -> list[Path]:
        """The job directories."""
        return job_directories(self.tapes)

    @property
    def descriptions(self) -> list[JobDescription]:
        """The newest description in each job directory."""
        return [job for directory in self.directories if (job := job_in(directory)) is not None]

    @property
    def tape_counts(self) -> list[int]:
        """The number of tapes in each job directory."""
        return [len(tapes_in(directory)) for directory in self.directories]

    def agent_logs(self) -> list[str]:
        """The logs of the agents, once they have ended."""
        paths = [directory / AGENT_LOG for directory in self.directories]
        until(lambda: all(ALL_ENDED in path.read_text() for path in paths), 120, lambda: self.output[-2000:])
        return [path.read_text() for path in paths]


@dataclass(frozen=True)
class RayCluster:
    """A running cluster.

    Attributes:
        folder: Its files.
        address: Its address, for RAY_ADDRESS.
        environ: The environment of its processes.
    """

    folder: Path
    address: str
    environ: dict[str, str] = field(repr=False)

    def run(self, program: Path, *arguments: str, tapes: Path, endpoint: str = "") -> RayJob:
        """Run a driver to its end."""
        exporters = {f"OTEL_{signal}_EXPORTER": "none" for signal in ("METRICS", "LOGS", "TRACES")}
        if endpoint:
            exporters |= {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint}
        ours = {
            OTEL_PYTHON_TORCHDIST_TAPE_DIR: str(tapes),
            OTEL_PYTHON_TORCHDIST_RAISE_INTERNAL: "true",
            OTEL_PYTHON_TORCHDIST_AGENT_LINGER: "5000",  # tests read what agents say at their end
        }
        environ = self.environ | exporters | ours | {"RAY_ADDRESS": self.address}
        command = [sys.executable, str(program), *arguments]
        ended = subprocess.run(
            command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=RUN_TIMEOUT_S, check=False
        )
        output = without_colours(ended.stdout.decode(errors="replace"))
        return RayJob(ended.returncode, output, tapes)

    def train(self, *arguments: str, tapes: Path, endpoint: str = "") -> RayJob:
        """Run `examples/ray/train.py`."""
        storage = ["--storage", str(self.folder / "results")]
        return self.run(EXAMPLE, *storage, *arguments, tapes=tapes, endpoint=endpoint)


def cluster_environ(folder: Path) -> dict[str, str]:
    """Return the environment of a cluster's processes, with a module in `folder` that lets them start sooner."""
    (folder / "rfc3987_syntax.py").write_text(_WITHOUT_PARSER)
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "RAY_"))}
    environ |= {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0", "RAY_TRAIN_V2_ENABLED": "1"}
    return environ | {"PYTHONPATH": str(folder)}


def without_colours(text: str) -> str:
    """Return a text as a file has it."""
    return _COLOURS.sub("", text)


@contextlib.contextmanager
def ray_cluster() -> Iterator[RayCluster]:
    """Start a cluster of one node, whose environment does not switch recording on: that is for the jobs to do."""
    needs("ray")
    with tempfile.TemporaryDirectory(prefix="ray") as name:  # a short path: it holds Unix sockets
        folder = Path(name)
        environ = cluster_environ(folder)
        command = [sys.executable, "-c", _HOST, name]
        output, errors = folder / "host.out", folder / "host.err"
        with output.open("w") as out, errors.open("w") as err:
            host = subprocess.Popen(
                command, env=environ, stdin=subprocess.PIPE, stdout=out, stderr=err, start_new_session=True
            )
        try:
            until(lambda: output.read_text().strip() or host.poll() is not None, START_TIMEOUT_S, errors.read_text)
            assert host.poll() is None, errors.read_text()
            yield RayCluster(folder, output.read_text().strip(), environ)
        finally:
            assert host.stdin is not None
            host.stdin.close()  # the host ends, and Ray stops the cluster
            host.wait(60)
