"""The command line without secrets, and the commit of the program."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from otel_torchdist.capture.core.run.description import own_job
from otel_torchdist.job.description import git_commit, without_secrets


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
