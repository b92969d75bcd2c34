"""Who a job is: what each launcher's environment says, and what is left of it beside the tape."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest

from otel_torchdist.capture.core.run.description import own_job
from otel_torchdist.node.job.description import (
    UNKNOWN_JOB,
    JobDescription,
    RankDescription,
    describe_job,
    description_path,
    git_commit,
    job_title,
    without_secrets,
    write_description,
)
from otel_torchdist.node.job.description_file import gpu_of, job_in, read_description

NOWHERE = Path("/nonexistent/namespace")


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"PATH": "/bin", "HOSTNAME": "node-1"}, UNKNOWN_JOB),
        (
            {
                "SLURM_JOB_ID": "4711",
                "SLURM_JOB_NAME": "llm",
                "SLURM_NODEID": "3",
                "SLURM_JOB_PARTITION": "h100",
                "SLURM_CLUSTER_NAME": "alps",
                "SLURM_ARRAY_JOB_ID": "4700",
                "SLURM_ARRAY_TASK_ID": "11",
                "SLURM_RESTART_COUNT": "1",
            },
            JobDescription(
                slurm_job_id="4711",
                slurm_job_name="llm",
                slurm_node_id="3",
                slurm_partition="h100",
                slurm_cluster="alps",
                slurm_array_job_id="4700",
                slurm_array_task_id="11",
                slurm_restart_count="1",
            ),
        ),
        ({"SLURM_JOBID": "12", "SLURM_JOB_ID": " "}, JobDescription(slurm_job_id="12")),
        (
            {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOSTNAME": "train-0"},
            JobDescription(kubernetes_pod="train-0", kubernetes_namespace="ml"),
        ),
        (
            {"POD_NAME": "train-0", "POD_NAMESPACE": "research", "POD_UID": "ab-cd", "K8S_NODE_NAME": "gpu-7"},
            JobDescription(
                kubernetes_pod="train-0",
                kubernetes_namespace="research",
                kubernetes_pod_uid="ab-cd",
                kubernetes_node="gpu-7",
            ),
        ),
        ({"RAY_JOB_ID": "02000000"}, JobDescription(ray_job_id="02000000")),
        (
            {"TORCHELASTIC_RUN_ID": "my-run", "TORCHELASTIC_RESTART_COUNT": "2"},
            JobDescription(elastic_run_id="my-run", elastic_restart_count="2"),
        ),
        (
            {"TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "0"},
            JobDescription(elastic_restart_count="0"),
        ),
        (
            {"MLFLOW_RUN_ID": "a1", "WANDB_RUN_ID": "b2", "WANDB_API_KEY": "secret", "MLFLOW_TRACKING_TOKEN": "secret"},
            JobDescription(mlflow_run_id="a1", wandb_run_id="b2"),
        ),
        (
            {"SLURM_JOB_NAME": "a\x1b[2J\udcff" + "b" * 1000},
            JobDescription(slurm_job_name="a\\x1b[2J\\udcff" + "b" * 250),
        ),
    ],
)
def test_environments(environ: dict[str, str], expected: JobDescription, tmp_path: Path) -> None:
    """Each launcher and tracker is understood, nothing else is passed on, and what is passed on can be printed."""
    (tmp_path / "namespace").write_text("ml\n")
    assert describe_job(environ, tmp_path / "namespace") == expected


def test_pod_without_a_namespace_file() -> None:
    """A pod without a service account says its name all the same."""
    environ = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOSTNAME": "train-0"}
    assert describe_job(environ, NOWHERE) == JobDescription(kubernetes_pod="train-0")


def test_file_beside_a_tape(tmp_path: Path) -> None:
    """A description comes back as it was written, for the owner alone, with the GPU once that is known."""
    tape = tmp_path / "aa.tape"
    assert read_description(tape) is None
    described = RankDescription(JobDescription(slurm_job_id="1", command=("python", "train.py")))
    write_description(tape, described)
    assert read_description(tape) == described
    assert description_path(tape).stat().st_mode & 0o777 == 0o600
    assert gpu_of(tape) == ""
    write_description(tape, RankDescription(described.job, "GPU-1"))
    assert gpu_of(tape) == "GPU-1"
    assert read_description(tape, os.geteuid()) == RankDescription(described.job, "GPU-1")
    assert read_description(tape, os.geteuid() + 1) is None


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b'{"job": 1}',
        b'{"job": {"slurm_job_id": 7}, "gpu": ""}',
        b"[" * 100_000,
        b'{"job": {}, "gpu": "' + b"x" * (1 << 17) + b'"}',
    ],
)
def test_damaged_file(tmp_path: Path, content: bytes) -> None:
    """A file that is none, or too large, says nothing."""
    description_path(tmp_path / "aa.tape").write_bytes(content)
    assert read_description(tmp_path / "aa.tape") is None


def test_hostile_file(tmp_path: Path) -> None:
    """What another user has written is bounded and printable, and a link is not followed."""
    tape = tmp_path / "aa.tape"
    body = {"job": {"slurm_job_name": "\x1b" * 500, "command": ["\x00" * 99] * 99}, "gpu": "\n" * 999}
    description_path(tape).write_text(json.dumps(body))
    found = read_description(tape)
    assert found is not None
    assert found.job.slurm_job_name == "\\x1b" * 256
    assert len(found.job.command) == 64 and all(part.isprintable() for part in (*found.job.command, found.gpu))
    description_path(tape).rename(tmp_path / "elsewhere")
    description_path(tape).symlink_to(tmp_path / "elsewhere")
    assert read_description(tape) is None


def test_newest_description_counts(tmp_path: Path) -> None:
    """A job directory may hold tapes of earlier attempts; without any description the job is not known."""
    assert job_in(tmp_path) is None
    for number, name in enumerate(("new", "old")):
        write_description(tmp_path / f"{name}.tape", RankDescription(JobDescription(slurm_job_name=name)))
        at = time.time() - 10 * number
        os.utime(tmp_path / f"{name}.description", (at, at))
    assert job_in(tmp_path) == JobDescription(slurm_job_name="new")


# --- The command line without secrets, and the commit of the program --------------------------------------------------


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("python -u train.py --lr 0.1", "python -u train.py --lr 0.1"),
        ("python train.py --hf_token hf_abc --epochs 3", "python train.py --hf_token *** --epochs 3"),
        ("python train.py --api-key=abc", "python train.py --api-key=***"),
        ("python train.py --password -geheim", "python train.py --password ***"),
        ("python train.py --use-auth --epochs 3", "python train.py --use-auth --epochs 3"),
        ("python train.py wandb.apiKey=abc lr=0.1", "python train.py wandb.apiKey=*** lr=0.1"),
        ("python train.py AWS_SECRET_ACCESS_KEY=abc", "python train.py AWS_SECRET_ACCESS_KEY=***"),
        ("python train.py --env WANDB_API_KEY=abc", "python train.py --env WANDB_API_KEY=***"),
        ("python train.py --env=WANDB_API_KEY=abc", "python train.py --env=***"),
        ("""python train.py '{"token": "abc"}'""", "python train.py '***'"),
        ("""python train.py --config='{"db_passwd": "abc"}'""", "python train.py '--config=***'"),
        ("python train.py sk-proj-abcdef", "python train.py '***'"),
        ("python train.py --model=ghp_abcdef", "python train.py '--model=***'"),
        ("python train.py --header 'Authorization: Bearer abc'", "python train.py --header '***'"),
        ("python train.py --store https://me:abc@host/x", "python train.py --store 'https://***@host/x'"),
        ("python -c 'token = 1'", "python -c '***'"),
        ("python train.py --tokenizer gpt2 --num-tokens 5", "python train.py --tokenizer gpt2 --num-tokens 5"),
        ("python train.py data/tokenized.bin keys.txt", "python train.py data/tokenized.bin keys.txt"),
    ],
)
def test_secrets(command: str, shown: str) -> None:
    """What is named like a secret, or begins like one, is replaced, and the rest stays readable."""
    assert list(without_secrets(shlex.split(command))) == shlex.split(shown)


def test_bounded_command() -> None:
    """Thousands of arguments, or one that is a whole file, are cut."""
    found = without_secrets(["python", "x" * 100_000, *map(str, range(5000))])
    assert len(found) == 64 and max(map(len, found)) <= 256


def git(folder: Path, *arguments: str) -> str:
    """Run git; returns its output."""
    options = ("-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "init.defaultBranch=main")
    done = subprocess.run(["git", *options, *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_commit(tmp_path: Path) -> None:
    """The commit is found from a folder inside, on a branch, packed, detached, and in a worktree; git is not run."""
    repository = tmp_path / "repository"
    (repository / "deep/inside").mkdir(parents=True)
    git(repository, "init")
    git(repository, "commit", "--allow-empty", "-m", "one")
    commit = git(repository, "rev-parse", "HEAD")
    assert git_commit(repository / "deep/inside") == commit
    git(repository, "pack-refs", "--all")
    assert git_commit(repository) == commit
    git(repository, "worktree", "add", "../tree", "-b", "other")
    git(tmp_path / "tree", "commit", "--allow-empty", "-m", "two")
    assert git_commit(tmp_path / "tree") == git(tmp_path / "tree", "rev-parse", "HEAD") != commit
    git(repository, "checkout", "--detach")
    assert git_commit(repository) == commit


@pytest.mark.parametrize("head", ["", "ref: ../../../etc/passwd", "ref: /etc/passwd", "ref: refs/heads/none", "x" * 40])
def test_no_commit(tmp_path: Path, head: str) -> None:
    """Outside of a repository, or in a damaged one, there is none."""
    assert git_commit(tmp_path / "a") == ""
    (tmp_path / "a/.git").mkdir(parents=True)
    (tmp_path / "a/.git/HEAD").write_text(head)
    assert git_commit(tmp_path / "a") == ""


def test_commit_of_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of the folder of its script, wherever it is started; that of the working directory if it has no script."""
    commits: dict[str, str] = {}
    for name in ("program", "elsewhere"):
        (tmp_path / name).mkdir()
        git(tmp_path / name, "init")
        git(tmp_path / name, "commit", "--allow-empty", "-m", name)
        commits[name] = git(tmp_path / name, "rev-parse", "HEAD")
    monkeypatch.chdir(tmp_path / "elsewhere")
    main = sys.modules["__main__"]
    monkeypatch.setattr(main, "__file__", "../program/train.py", raising=False)
    assert own_job(describes_launch=True).git_commit == commits["program"]
    monkeypatch.delattr(main, "__file__")
    assert own_job(describes_launch=True).git_commit == commits["elsewhere"] != commits["program"]
    assert own_job(describes_launch=False).git_commit == ""


@pytest.mark.parametrize(
    ("job", "title"),
    [
        (JobDescription(), ""),
        (JobDescription(slurm_job_id="1"), "Slurm job 1"),
        (JobDescription(slurm_job_id="1", slurm_restart_count="0"), "Slurm job 1"),
        (JobDescription(slurm_job_id="1", slurm_restart_count="10"), "Slurm job 1, restart 10"),
        (JobDescription(ray_job_id="01000000", ray_train_run="pretrain"), "Ray job 01000000, training pretrain"),
        (JobDescription(ray_job_id="01000000", ray_submission_id="nightly-3"), "Ray job nightly-3"),
        (JobDescription(kubernetes_pod="train-0-x7", kubernetes_namespace="ml"), "pod train-0-x7 in ml"),
        (
            JobDescription(
                ray_job_id="02000000", kubernetes_pod="w-1", kubernetes_job="llm", kubernetes_namespace="ml"
            ),
            "Ray job 02000000; Kubernetes job llm, pod w-1 in ml",
        ),
        (
            JobDescription(
                slurm_job_id="4",
                slurm_job_name="sweep",
                slurm_array_job_id="2",
                slurm_array_task_id="3",
                slurm_restart_count="1",
            ),
            "Slurm job 4 (sweep), task 3 of array 2, restart 1",
        ),
    ],
)
def test_title(job: JobDescription, title: str) -> None:
    """A job is called as the commands of Slurm, Ray and Kubernetes call it."""
    assert job_title(job) == title
