"""Where tapes may be, and which ranks share a job directory."""

from __future__ import annotations

import os
import re
import stat
import subprocess
from pathlib import Path

import pytest

from otel_torchdist.errors import TapeError
from otel_torchdist.node.job.directory import base_directory, job_directories, job_directory, job_key, tapes_in
from otel_torchdist.show.serving.scrape_target import ScrapeTarget
from tests.support.repository import REPOSITORY
from tests.support.tapes.tapes import new_writer, open_descriptors, settled_descriptors

NOBODY = 65534
NONE_RUN = {"TORCHELASTIC_RUN_ID": "none"}
ADDRESS = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
MPIRUN = {"PMIX_NAMESPACE": "1421410305", "OMPI_COMM_WORLD_SIZE": "2"}
SLURM = {"SLURM_JOB_ID": "77", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4"}


def mode_of(path: Path) -> int:
    """Permission bits."""
    return stat.S_IMODE(path.stat().st_mode)


def assert_refused(path: Path, reason: str, on_disk: bool = False) -> None:
    """The error names path and reason, and no descriptor stays open."""
    before = settled_descriptors()
    with pytest.raises(TapeError, match=re.escape(reason)) as refusal:
        base_directory(path, on_disk)
    assert str(path) in str(refusal.value)
    del refusal
    assert open_descriptors() == before


def not_in_memory(directory: Path) -> Path:
    """An existing directory of this user's that is not on tmpfs."""
    for path in (directory, REPOSITORY):
        if path.stat().st_dev != Path("/dev/shm").stat().st_dev and path.stat().st_uid == os.geteuid():
            return path
    pytest.skip("everything here lies in memory")


def test_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a setting it is created in /dev/shm, named by the user's id; others may traverse, but not list it."""
    monkeypatch.setattr(os, "getuid", lambda: 3_999_999_000 + os.getpid() % 1000)
    path = base_directory(None, on_disk=False)
    try:
        assert path == Path(f"/dev/shm/otel-torchdist-{os.getuid()}")
        assert mode_of(path) == 0o711
        path.chmod(0o700)  # as earlier versions created it
        assert base_directory(None, on_disk=False) == path, "the second time it is there"
        assert mode_of(path) == 0o711
        path.chmod(0o750)
        base_directory(path, on_disk=False)
        assert mode_of(path) == 0o750, "what the user has chosen stays"
    finally:
        path.rmdir()


def test_configured(memory: Path) -> None:
    """A configured one is created too, whatever the umask."""
    umask = os.umask(0)
    try:
        path = base_directory(memory / "tapes", on_disk=False)
    finally:
        os.umask(umask)
    assert path == memory / "tapes"
    assert mode_of(path) == 0o711
    path.chmod(0o700)
    assert base_directory(path, on_disk=False) == path
    assert mode_of(path) == 0o700, "one that the user has made or changed is left alone"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_what_another_user_finds(memory: Path) -> None:
    """Prometheus, as a user of its own, can read its targets also under a strict umask, and nothing else."""
    umask = os.umask(0o077)
    try:
        base = base_directory(memory / "tapes", on_disk=False)
        directory = job_directory(base, "job-0123456789abcdef")
        (directory / "some.tape").touch()
        ScrapeTarget(directory).publish("127.0.0.1", 9464)
    finally:
        os.umask(umask)
    memory.chmod(0o711)
    tries = ["prometheus/", "prometheus/job-0123456789abcdef.json", "", directory.name, f"{directory.name}/some.tape"]
    said = [
        subprocess.run(
            ["sh", "-c", 'if [ -d "$0" ]; then ls "$0"; else cat "$0"; fi', str(base / name)],
            user=NOBODY, group=NOBODY, extra_groups=[], cwd="/", capture_output=True, text=True, check=False,
        )
        for name in tries
    ]  # fmt: skip
    assert [one.returncode == 0 for one in said] == [True, True, False, False, False]
    assert "127.0.0.1:9464" in said[1].stdout


def test_parent_missing(memory: Path) -> None:
    """Parents are not created: a typing error must not leave directories about."""
    assert_refused(memory / "typo" / "tapes", "No such file")
    assert list(memory.iterdir()) == []


def test_link(memory: Path) -> None:
    """A link is refused, wherever it leads."""
    (memory / "own").mkdir(0o700)
    (memory / "link").symlink_to(memory / "own")
    (memory / "loose").symlink_to(memory / "nowhere")
    assert_refused(memory / "link", "is a link")
    assert_refused(memory / "loose", "is a link")


def test_no_directory(memory: Path) -> None:
    """A file is refused."""
    (memory / "file").touch()
    assert_refused(memory / "file", "is not a directory")


@pytest.mark.parametrize("mode", [0o770, 0o702, 0o1777])
def test_others_may_write(memory: Path, mode: int) -> None:
    """A directory that others may write to is refused: they could plant tapes."""
    path = memory / "open"
    path.mkdir()
    path.chmod(mode)
    assert_refused(path, f"others may write to it (mode {mode:04o})")
    path.chmod(0o755)
    assert base_directory(path, on_disk=False) == path, "that others may look is the user's own choice"


def test_foreign_owner(memory: Path) -> None:
    """Another user's directory is refused, for root too."""
    if os.geteuid():
        assert_refused(Path("/"), "it belongs to user 0 and not to user", on_disk=True)
        return
    path = memory / "foreign"
    path.mkdir(0o700)
    os.chown(path, NOBODY, NOBODY)
    assert_refused(path, f"it belongs to user {NOBODY} and not to user 0")


def test_disk(tmp_path: Path) -> None:
    """A disk is refused by the name of its file system, unless the user allows it."""
    path = not_in_memory(tmp_path)
    assert_refused(path, "and not in memory (tmpfs)")
    assert_refused(path, "OTEL_PYTHON_TORCHDIST_TAPE_ON_DISK=true")
    assert base_directory(path, on_disk=True) == path


def test_job_directory(memory: Path) -> None:
    """A job's directory is created for the user alone, found again, and held to the same rules as the base."""
    path = job_directory(memory, "job-0123456789abcdef")
    assert (path, mode_of(path)) == (memory / "job-0123456789abcdef", 0o700)
    assert job_directory(memory, "job-0123456789abcdef") == path
    path.chmod(0o777)
    with pytest.raises(TapeError, match="others may write"):
        job_directory(memory, "job-0123456789abcdef")


def test_listings(memory: Path) -> None:
    """Only job directories and whole tapes are listed, no links, no others' files, by name."""
    keys = sorted(job_key({**NONE_RUN, **ADDRESS, "MASTER_PORT": str(port)}) for port in range(3))
    directories = [job_directory(memory, key) for key in reversed(keys)]
    (memory / "job-fedcba9876543210").symlink_to(directories[0])
    (memory / "job-0123456789abcdee").touch()
    (memory / "job-thesis").mkdir()
    assert job_directories(memory) == directories[::-1]
    writers = [new_writer(directories[0]) for _ in range(3)]
    (directories[0] / "f.tape").symlink_to(writers[0].path)
    (directories[0] / ".0000000000000001.new").touch()
    (directories[0] / ".0000000000000001.tape").touch()
    assert tapes_in(directories[0]) == sorted(writer.path for writer in writers)
    assert tapes_in(directories[1]) == tapes_in(memory / "gone") == job_directories(memory / "gone") == []


def torchrun(directory: str, attempt: int = 0, local_rank: int = 0, **others: str) -> dict[str, str]:
    """What torchrun sets that describes the job."""
    return {
        "TORCHELASTIC_RUN_ID": "none",
        "TORCHELASTIC_ERROR_FILE": f"{directory}/attempt_{attempt}/{local_rank}/error.json",
        "TORCHELASTIC_RESTART_COUNT": str(attempt),
        "LOCAL_RANK": str(local_rank),
        **ADDRESS,
        **others,
    }


LOGS = "/tmp/torchelastic_ab12/none_xy34"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (torchrun(LOGS), torchrun(LOGS, local_rank=3)),
        (torchrun(LOGS), torchrun(LOGS, attempt=2, MASTER_PORT="41234")),
        (torchrun(LOGS), torchrun(LOGS) | SLURM),
        (torchrun("logs/none_xy34"), torchrun("logs/none_xy34", attempt=1)),
        ({"TORCHELASTIC_RUN_ID": "job7", **ADDRESS}, {"TORCHELASTIC_RUN_ID": "job7"}),
        ({**NONE_RUN, **ADDRESS, "RANK": "0"}, {**NONE_RUN, **ADDRESS, "RANK": "1"}),
        ({**SLURM, "SLURM_PROCID": "0"}, {**SLURM, "SLURM_PROCID": "1"}),
        ({**ADDRESS, "RANK": "0"}, {**ADDRESS, "RANK": "1"}),
        ({**MPIRUN, "OMPI_COMM_WORLD_RANK": "0"}, {**MPIRUN, "OMPI_COMM_WORLD_RANK": "1"}),
        ({"RANK": "0"}, {"RANK": "1", "MASTER_ADDR": "127.0.0.1"}),
        ({"SLURM_JOB_ID": "77", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "1"}, {}),
    ],
    ids=[
        "torchrun's ranks",
        "torchrun's restart on another port",
        "torchrun under Slurm",
        "torchrun with a relative log directory",
        "torchrun with a run id and no log directory",
        "torchrun with neither",
        "tasks of a Slurm step",
        "an address",
        "mpirun",
        "children of one parent",
        "children of one parent in a user's shell under Slurm",
    ],
)
def test_ranks_of_one_job_share_a_key(one: dict[str, str], other: dict[str, str]) -> None:
    """Local ranks of one job, and its attempts, find the same directory, under a valid file name."""
    assert job_key(one) == job_key(other)
    assert re.fullmatch("job-[0-9a-f]{16}", job_key(one))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (torchrun(LOGS), torchrun("/tmp/torchelastic_cd56/none_zz78")),
        (torchrun("/logs/100_aaaa", TORCHELASTIC_RUN_ID="100"), torchrun("/logs/100_bbbb", TORCHELASTIC_RUN_ID="100")),
        ({"TORCHELASTIC_RUN_ID": "job7", **ADDRESS}, {"TORCHELASTIC_RUN_ID": "job8", **ADDRESS}),
        ({**NONE_RUN, **ADDRESS}, {**NONE_RUN, **ADDRESS, "MASTER_PORT": "29501"}),
        ({**NONE_RUN, **ADDRESS}, {**NONE_RUN, **ADDRESS, "MASTER_ADDR": "10.0.0.1"}),
        (SLURM, {**SLURM, "SLURM_STEP_ID": "1"}),
        (SLURM, {**SLURM, "SLURM_JOB_ID": "78"}),
        ({**SLURM, **ADDRESS}, {**SLURM, **ADDRESS, "MASTER_PORT": "29501"}),
        (ADDRESS, {**ADDRESS, "MASTER_PORT": "29501"}),
        (MPIRUN, {**MPIRUN, "PMIX_NAMESPACE": "1421410306"}),
        ({**MPIRUN, **ADDRESS}, {**MPIRUN, **ADDRESS, "MASTER_PORT": "29501"}),
        ({"MASTER_ADDR": "a", "MASTER_PORT": "b"}, {"MASTER_ADDR": "ab", "MASTER_PORT": ""}),
    ],
)
def test_jobs_do_not_share_a_key(one: dict[str, str], other: dict[str, str]) -> None:
    """Two jobs of one user on one node have directories of their own."""
    assert job_key(one) != job_key(other)


def test_another_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the environment does not describe the job, two parents are two jobs."""
    ours = job_key({})
    monkeypatch.setattr(os, "getppid", os.getpid)
    assert job_key({}) != ours


def test_mpirun_behind_scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks of one mpirun share a directory though a script starts each, which gives each its own parent."""
    ours = job_key(MPIRUN)
    monkeypatch.setattr(os, "getppid", os.getpid)
    assert job_key(MPIRUN) == ours


def test_odd_environment() -> None:
    """Bytes that cannot be decoded make a key too."""
    assert re.fullmatch("job-[0-9a-f]{16}", job_key({"TORCHELASTIC_RUN_ID": "\udcff/../\n"}))
