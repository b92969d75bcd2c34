"""How the program of a rank was launched, and from which commit: only on request, and without secrets.

Nothing is run for that: a process of the training that starts another one would see a child that it does not know.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from otel_torchdist.job.description import MAX_ARGUMENTS
from otel_torchdist.naming import readable

HIDDEN: Final = "***"
MAX_ARGUMENT: Final = 256
_MAX_FILE: Final = 4 << 20
_COMMIT: Final = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_SECRET_ENDINGS: Final = (
    "token",
    "key",
    "keys",
    "secret",
    "secrets",
    "password",
    "passwd",
    "passphrase",
    "pwd",
    "credential",
    "credentials",
    "auth",
    "authorization",
    "bearer",
)
"""How words of names end that stand for secrets: `--hf_token`, `apikey`, but not `--tokenizer` or `--num-tokens`."""
_WORDS: Final = re.compile(r"[A-Z]*[a-z]+|[A-Z]+")
_LOOKS_SECRET: Final = re.compile(
    r"(?:sk-|hf_|gh[oprsu]_|github_pat_|glpat-|xox[abprs]-|AKIA|ASIA|eyJ|-----BEGIN|Bearer |Basic )"
)
"""How common secrets begin: keys of OpenAI, Hugging Face, GitHub, GitLab, Slack and AWS, JSON web tokens."""
_USER_INFO: Final = re.compile(r"(?<=://)[^/\s@]+@")


def without_secrets(arguments: Sequence[str]) -> tuple[str, ...]:
    """Return a command line with values that look like secrets replaced by `***`, and code after `-c` too."""
    shown: list[str] = []
    hides_next = False
    for argument in arguments[:MAX_ARGUMENTS]:
        is_option = argument.startswith("-")
        shown.append(HIDDEN if hides_next and not argument.startswith("--") else _shown(argument))
        hides_next = is_option and "=" not in argument and (argument == "-c" or _is_secret(argument))
    return tuple(readable(argument, MAX_ARGUMENT) for argument in shown)


def _shown(argument: str) -> str:
    name, equals, value = argument.partition("=")
    if equals and (_is_secret(name) or _holds_secret(value)):
        return f"{name}={HIDDEN}"
    if not argument.startswith("-") and _holds_secret(argument):
        return HIDDEN
    return _USER_INFO.sub(f"{HIDDEN}@", argument)


def _is_secret(name: str) -> bool:
    """Whether a name has a word that stands for a secret."""
    return any(word.lower().endswith(_SECRET_ENDINGS) for word in _WORDS.findall(name))


def _holds_secret(value: str) -> bool:
    """Whether a value begins like a secret, or is a document or another assignment with a secret's name in it."""
    is_structured = any(mark in value for mark in "={}'\"") or ": " in value
    return _LOOKS_SECRET.search(value) is not None or (is_structured and _is_secret(value))


def git_commit(start: Path) -> str:
    """Return the commit that is checked out where `start` lies; '' if that is no repository, or cannot be read."""
    with contextlib.suppress(OSError, ValueError):
        for folder in (start, *start.parents):
            entry = folder / ".git"
            if entry.is_dir():
                return _commit_in(entry, entry)
            if entry.is_file():  # a worktree, or a submodule
                git = folder / _text(entry).removeprefix("gitdir:").strip()
                common = git / "commondir"
                return _commit_in(git, git / _text(common) if common.is_file() else git)
    return ""


def _commit_in(git: Path, common: Path) -> str:
    head = _text(git / "HEAD")
    if not head.startswith("ref: "):
        return _checked(head)
    ref = head.removeprefix("ref: ").strip()
    if ref.startswith("/") or ".." in ref:
        return ""
    for folder in (git, common):
        with contextlib.suppress(OSError):
            return _checked(_text(folder / ref))
    lines = _text(common / "packed-refs").splitlines()
    return next((_checked(line[: -len(ref)].strip()) for line in lines if line.endswith(f" {ref}")), "")


def _checked(commit: str) -> str:
    return commit if _COMMIT.fullmatch(commit) else ""


def _text(path: Path) -> str:
    with path.open("rb") as file:
        return os.fsdecode(file.read(_MAX_FILE)).strip()
