"""The images: built by buildah on a Debian, and run as in a pod: one records a job, the other reads it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from deploy.native.http_json import answers
from deploy.native.ports import free_port
from deploy.native.servers import cache_folder
from tests.support.repository import REPOSITORY
from tests.support.waiting import until

FOLDER = REPOSITORY / "deploy" / "docker"
DOCKERFILE = FOLDER / "Dockerfile"
USER = 1000
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
NEEDED = {
    *("filelock", "fsspec", "functorch", "jinja2", "markupsafe", "mpmath", "networkx", "numpy", "nvidia", "sympy"),
    *("torch", "torchgen", "triton", "typing_extensions"),
}
"""What the training imports; nothing of OpenTelemetry is on its path."""
PROGRAM = """\
import sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4))
if dist.get_rank() == 1:
    while not input_file.exists(): time.sleep(0.1)
dist.all_reduce(torch.ones(4))
assert not [name for name in sys.modules if name.startswith("opentelemetry")]
"""


def test_dockerfile() -> None:
    """Each base has a version, each image a numeric user that is not root, and no layer has a password."""
    text = DOCKERFILE.read_text()
    assert re.findall(r"^ARG (\w+)=\S+:\d", text, re.MULTILINE) == ["BASE", "COPY_BASE"]
    stages = dict(re.findall(r"^FROM \S+ AS (\S+)\n(.*?)(?=^FROM |\Z)", text, re.MULTILINE | re.DOTALL))
    assert list(stages) == ["installed", "agent", "auto-instrumentation"]
    for name in ("agent", "auto-instrumentation"):
        assert f"\nUSER {USER}:{USER}\n" in stages[name]
        assert "pip" not in stages[name]
    assert "--mount=type=secret,id=pip.conf" in stages["installed"]
    assert "ADD " not in text and ":latest" not in text
    assert (FOLDER / "Dockerfile.dockerignore").read_text().splitlines()[1:] == ["*", "!dist/*.whl"]


@dataclass(frozen=True)
class Images:
    """Built images.

    Attributes:
        storage: Options of buildah that say where they are.
    """

    storage: tuple[str, ...]

    def command(self, *arguments: str | Path) -> list[str]:
        """The command line of buildah."""
        return ["buildah", *self.storage, *map(str, arguments)]

    def do(self, *arguments: str | Path) -> str:
        """Run buildah, and return its output."""
        done = subprocess.run(self.command(*arguments), capture_output=True, text=True, cwd=REPOSITORY, check=False)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout.strip()


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Images]:
    """Both images, from a wheel of this checkout."""
    base = cache_folder() / "stack" / "image-base"
    if os.geteuid() != 0 or shutil.which("buildah") is None or not (base / ".complete").is_file():
        pytest.skip("needs root, buildah (apt-get install buildah), and `make image-base`")
    home = tmp_path_factory.mktemp("images")
    context = home / "context"
    wheels = context / "dist"
    subprocess.run(
        [Path(sys.executable).with_name("uv"), "build", "--quiet", "--wheel", "--out-dir", wheels, REPOSITORY],
        check=True,
    )
    images = Images(("--root", str(home / "storage"), "--runroot", str(home / "run"), "--storage-driver", "overlay"))
    empty = images.do("from", "scratch")
    images.do("add", "--quiet", empty, base, "/")
    images.do("config", "--env", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", empty)
    images.do("commit", "--quiet", "--rm", empty, "localhost/base:1")
    settings = home / "pip.conf"
    settings.write_text(f"[global]\ncert = {CERTIFICATES}\n")
    for target in ("agent", "auto-instrumentation"):
        images.do(
            *("bud", "--isolation", "chroot", "--network", "host", "--layers", "--target", target),
            *("--volume", f"{CERTIFICATES}:{CERTIFICATES}:ro", "--secret", f"id=pip.conf,src={settings}"),
            *("--build-arg", "BASE=localhost/base:1", "--build-arg", "COPY_BASE=localhost/base:1"),
            *("--file", DOCKERFILE, "--ignorefile", FOLDER / "Dockerfile.dockerignore"),
            *("--tag", f"localhost/{target}:1", context),
        )
    yield images
    images.do("rm", "--all")
    images.do("rmi", "--all", "--force")


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_job_is_recorded_and_read(images: Images, memory: Path, tmp_path: Path) -> None:
    """Ranks that have only the files of the one image are recorded; the agent in the other one names the late rank.

    Both are root, as in most images of torch, because other users may not read this machine's Python.
    """
    package = tmp_path / "autoinstrumentation"
    container = images.do("from", "localhost/auto-instrumentation:1")
    root = Path(images.do("mount", container))
    shutil.copytree(root / "autoinstrumentation", package)  # as the operator's initial container does
    ready, job = tmp_path / "go-on", tmp_path / "job.log"
    program = tmp_path / "train.py"
    program.write_text(f"from pathlib import Path\ninput_file = Path({str(ready)!r})\n{PROGRAM}")
    agent = images.do("from", "localhost/agent:1")
    port = free_port()
    with job.open("ab") as log:
        training = subprocess.Popen(
            [sys.executable, "-S", "-m", "torch.distributed.run", "--nproc-per-node=2", program],
            env={
                **{"PATH": os.environ["PATH"], "HOME": "/tmp", "GLOO_SOCKET_IFNAME": "lo"},
                "PYTHONPATH": f"{package}:{torch_alone(tmp_path / 'packages')}",
                "OTEL_PYTHON_TORCHDIST_ENABLED": "true",
                "OTEL_PYTHON_TORCHDIST_READER": "none",
                "OTEL_PYTHON_TORCHDIST_TAPE_DIR": str(memory / "tapes"),
            },
            stdout=log,
            stderr=log,
        )
    # With the PID namespace of the job, as in a pod that shares it, which `buildah run` cannot do.
    inside = Path(images.do("mount", agent))
    (inside / memory.relative_to("/")).mkdir(parents=True)
    mounts = f"mount --rbind /proc {inside}/proc; mount --bind {memory} {inside}{memory}"
    reader = subprocess.Popen(
        [
            *("unshare", "--mount", "sh", "-ec", f'{mounts}; exec chroot {inside} "$@"', "agent"),
            *("/opt/otel-torchdist/bin/otel-torchdist", "agent", "--watch"),
        ],
        env={
            "OTEL_PYTHON_TORCHDIST_TAPE_DIR": str(memory / "tapes"),
            "OTEL_PYTHON_TORCHDIST_STALL_TIMEOUT": "3000",
            "OTEL_TRACES_EXPORTER": "none",
            "OTEL_EXPORTER_PROMETHEUS_HOST": "127.0.0.1",
            "OTEL_EXPORTER_PROMETHEUS_PORT": str(port),
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        },
    )
    try:
        until(lambda: "rank 1 has not entered all_reduce" in job.read_text(), 120, job.read_text)
        assert answers(f"http://127.0.0.1:{port}/metrics")
        ready.touch()
        assert training.wait(60) == 0, job.read_text()
    finally:
        for process in (training, reader):
            process.terminate()
            process.wait()


def torch_alone(folder: Path) -> Path:
    """A folder with what the training imports, as an image without OpenTelemetry has it."""
    packages = Path(sysconfig.get_path("purelib"))
    folder.mkdir()
    for path in packages.iterdir():
        if path.name.split("-")[0].split(".")[0].lower() in NEEDED:
            (folder / path.name).symlink_to(path)
    return folder
