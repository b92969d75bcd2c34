"""The description of a rank's job. The rank writes it beside its tape, because a reader has another environment.

Fields have this project's names; `telemetry` maps them to OpenTelemetry's attributes.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from otel_torchdist.model.text import readable
from otel_torchdist.node.job.ancestry import StandardError
from otel_torchdist.system.files.others import read_regular
from otel_torchdist.system.files.owned import replace_at_once

MAX_BYTES: Final = 1 << 16
MAX_VALUE: Final = 256
"""Maximum characters of a value."""
MAX_ARGUMENTS: Final = 64
_NAMESPACE_FILE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


@dataclass(frozen=True, slots=True)
class JobDescription:
    """The names and ids of a job in launchers and experiment trackers; '' if unknown.

    Attributes:
        slurm_array_job_id: Number of the job array.
        slurm_array_task_id: Index in the job array.
        slurm_node_id: Index of the node in the job.
        slurm_restart_count: Number of restarts by Slurm.
        kubernetes_job: Name of the Job that owns the pod.
        ray_submission_id: Id of the job of `ray job submit`.
        ray_train_run: Name of the training in Ray Train.
        ray_train_run_id: Id of the training in Ray Train.
        elastic_run_id: torchelastic's id of the run (`--rdzv-id`).
        elastic_restart_count: Number of restarts of the workers by torchelastic.
        wandb_run_id: Id of the run in Weights & Biases.
        git_commit: Commit of the program's repository; only on request.
        command: The command line without secrets; only on request.
    """

    slurm_job_id: str = ""
    slurm_job_name: str = ""
    slurm_array_job_id: str = ""
    slurm_array_task_id: str = ""
    slurm_partition: str = ""
    slurm_cluster: str = ""
    slurm_node_id: str = ""
    slurm_restart_count: str = ""
    kubernetes_cluster: str = ""
    kubernetes_namespace: str = ""
    kubernetes_pod: str = ""
    kubernetes_pod_uid: str = ""
    kubernetes_node: str = ""
    kubernetes_container: str = ""
    kubernetes_job: str = ""
    ray_job_id: str = ""
    ray_submission_id: str = ""
    ray_train_run: str = ""
    ray_train_run_id: str = ""
    elastic_run_id: str = ""
    elastic_restart_count: str = ""
    mlflow_run_id: str = ""
    wandb_run_id: str = ""
    git_commit: str = ""
    command: tuple[str, ...] = ()


UNKNOWN_JOB: Final = JobDescription()

_VARIABLES: Final[Mapping[str, tuple[str, ...]]] = {
    "slurm_job_id": ("SLURM_JOB_ID", "SLURM_JOBID"),
    "slurm_job_name": ("SLURM_JOB_NAME",),
    "slurm_array_job_id": ("SLURM_ARRAY_JOB_ID",),
    "slurm_array_task_id": ("SLURM_ARRAY_TASK_ID",),
    "slurm_partition": ("SLURM_JOB_PARTITION",),
    "slurm_cluster": ("SLURM_CLUSTER_NAME",),
    "slurm_node_id": ("SLURM_NODEID",),
    "slurm_restart_count": ("SLURM_RESTART_COUNT",),
    "kubernetes_cluster": ("K8S_CLUSTER_NAME",),
    "kubernetes_namespace": ("K8S_NAMESPACE_NAME", "K8S_NAMESPACE", "POD_NAMESPACE", "MY_POD_NAMESPACE"),
    # The last variable is set by OpenTelemetry's operator.
    "kubernetes_pod": ("K8S_POD_NAME", "POD_NAME", "MY_POD_NAME", "OTEL_RESOURCE_ATTRIBUTES_POD_NAME"),
    "kubernetes_pod_uid": ("K8S_POD_UID", "POD_UID", "MY_POD_UID", "OTEL_RESOURCE_ATTRIBUTES_POD_UID"),
    "kubernetes_node": ("K8S_NODE_NAME", "MY_NODE_NAME", "OTEL_RESOURCE_ATTRIBUTES_NODE_NAME"),
    "kubernetes_container": ("K8S_CONTAINER_NAME",),
    "kubernetes_job": ("K8S_JOB_NAME",),
    "ray_job_id": ("RAY_JOB_ID",),
    "elastic_run_id": ("TORCHELASTIC_RUN_ID",),
    "elastic_restart_count": ("TORCHELASTIC_RESTART_COUNT",),
    "mlflow_run_id": ("MLFLOW_RUN_ID",),
    "wandb_run_id": ("WANDB_RUN_ID",),
}
"""Environment variables for each field, in order of precedence.

Kubernetes sets none of its variables itself: these are the usual names for values of the downward API.
"""
_IN_KUBERNETES: Final = "KUBERNETES_SERVICE_HOST"
_NO_ID: Final = "none"
"""torchrun's id for a run without an id."""


def describe_job(environ: Mapping[str, str], namespace_file: Path = _NAMESPACE_FILE) -> JobDescription:
    """Describe the job of a process from its environment.

    Args:
        environ: The environment.
        namespace_file: File with the pod's namespace, written by Kubernetes.
    """
    values: dict[str, Any] = {
        name: next((text for variable in variables if (text := shortened(environ.get(variable, "")))), "")
        for name, variables in _VARIABLES.items()
    }
    if values["elastic_run_id"] == _NO_ID:
        values["elastic_run_id"] = ""
    if environ.get(_IN_KUBERNETES):
        # A pod's host name is the pod's name, unless its specification sets another.
        values["kubernetes_pod"] = values["kubernetes_pod"] or shortened(environ.get("HOSTNAME", ""))
        values["kubernetes_namespace"] = values["kubernetes_namespace"] or _namespace_in(namespace_file)
    return JobDescription(**values)


def job_title(job: JobDescription) -> str:
    """Return the names by which users know a job, such as `Slurm job 4711 (pretrain)`; '' if there are none."""
    return "; ".join(filter(None, (_slurm_title(job), _ray_title(job), _kubernetes_title(job))))


def _slurm_title(job: JobDescription) -> str:
    if not job.slurm_job_id:
        return ""
    name = f" ({job.slurm_job_name})" if job.slurm_job_name else ""
    array = f", task {job.slurm_array_task_id} of array {job.slurm_array_job_id}" if job.slurm_array_job_id else ""
    restart = f", restart {job.slurm_restart_count}" if job.slurm_restart_count.strip("0") else ""
    return f"Slurm job {job.slurm_job_id}{name}{array}{restart}"


def _ray_title(job: JobDescription) -> str:
    name = job.ray_submission_id or job.ray_job_id
    training = f", training {job.ray_train_run}" if job.ray_train_run else ""
    return f"Ray job {name}{training}" if name else ""


def _kubernetes_title(job: JobDescription) -> str:
    where = f" in {job.kubernetes_namespace}" if job.kubernetes_namespace else ""
    owner = f"Kubernetes job {job.kubernetes_job}, " if job.kubernetes_job else ""
    return f"{owner}pod {job.kubernetes_pod}{where}" if job.kubernetes_pod else ""


def shortened(text: str) -> str:
    """Return a value shortened, without characters that cannot be encoded or printed."""
    return readable(text.strip(), MAX_VALUE)


def _namespace_in(file: Path) -> str:
    with contextlib.suppress(OSError):
        return shortened(read_regular(file.resolve(), MAX_BYTES).decode("utf-8", "replace"))
    return ""


# --- the file beside a tape ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RankDescription:
    """A rank's description of itself.

    Attributes:
        job: Its job.
        gpu: UUID of the GPU that runs its operations (`GPU-…`); '' before the first operation.
        stderr: The standard error of its job; None if `/proc` does not show it.
    """

    job: JobDescription = UNKNOWN_JOB
    gpu: str = ""
    stderr: StandardError | None = None


def description_path(tape: Path) -> Path:
    """Return the path of the description of the process that writes `tape`."""
    return tape.with_suffix(".description")


def write_description(tape: Path, description: RankDescription) -> None:
    """Replace the description beside a tape atomically.

    Raises:
        OSError: The file cannot be written.
    """
    content = json.dumps(asdict(description), separators=(",", ":")).encode()
    replace_at_once(description_path(tape), tape.with_suffix(".description.new"), content)


# --- how the program was launched -------------------------------------------------------------------------------------
# The command line of a rank and the commit of its repository: only on request, and without secrets.
# The commit is read from files, not with `git`: the training program would see an unknown child process.


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
"""Endings of words that name secrets: `--hf_token`, `apikey`, but not `--tokenizer` or `--num-tokens`."""
_WORDS: Final = re.compile(r"[A-Z]*[a-z]+|[A-Z]+")
_LOOKS_SECRET: Final = re.compile(
    r"(?:sk-|hf_|gh[oprsu]_|github_pat_|glpat-|xox[abprs]-|AKIA|ASIA|eyJ|-----BEGIN|Bearer |Basic )"
)
"""Prefixes of common secrets: keys of OpenAI, Hugging Face, GitHub, GitLab, Slack and AWS, JSON web tokens."""
_USER_INFO: Final = re.compile(r"(?<=://)[^/\s@]+@")


def without_secrets(arguments: Sequence[str]) -> tuple[str, ...]:
    """Return a command line in which `***` replaces code after `-c` and values that look like secrets."""
    masked: list[str] = []
    hides_next = False
    for argument in arguments[:MAX_ARGUMENTS]:
        is_option = argument.startswith("-")
        masked.append(HIDDEN if hides_next and not argument.startswith("--") else _masked(argument))
        hides_next = is_option and "=" not in argument and (argument == "-c" or _is_secret(argument))
    return tuple(readable(argument, MAX_ARGUMENT) for argument in masked)


def _masked(argument: str) -> str:
    name, equals, value = argument.partition("=")
    if equals and (_is_secret(name) or _holds_secret(value)):
        return f"{name}={HIDDEN}"
    if not argument.startswith("-") and _holds_secret(argument):
        return HIDDEN
    return _USER_INFO.sub(f"{HIDDEN}@", argument)


def _is_secret(name: str) -> bool:
    """Return whether a name contains a word that stands for a secret."""
    return any(word.lower().endswith(_SECRET_ENDINGS) for word in _WORDS.findall(name))


def _holds_secret(value: str) -> bool:
    """Return whether a value starts like a secret, or is a document or an assignment that names a secret."""
    is_structured = any(mark in value for mark in "={}'\"") or ": " in value
    return _LOOKS_SECRET.search(value) is not None or (is_structured and _is_secret(value))


def git_commit(start: Path) -> str:
    """Return the commit checked out in the repository around `start`; '' if there is none, or it cannot be read."""
    with contextlib.suppress(OSError, ValueError):
        for folder in (start, *start.parents):
            entry = folder / ".git"
            if entry.is_dir():
                return _commit_in(entry, entry)
            if entry.is_file():  # a worktree, or a submodule
                git = folder / _read_text(entry).removeprefix("gitdir:").strip()
                common = git / "commondir"
                return _commit_in(git, git / _read_text(common) if common.is_file() else git)
    return ""


def _commit_in(git: Path, common: Path) -> str:
    head = _read_text(git / "HEAD")
    if not head.startswith("ref: "):
        return _commit_or_empty(head)
    ref = head.removeprefix("ref: ").strip()
    if ref.startswith("/") or ".." in ref:
        return ""
    for folder in (git, common):
        with contextlib.suppress(OSError):
            return _commit_or_empty(_read_text(folder / ref))
    lines = _read_text(common / "packed-refs").splitlines()
    return next((_commit_or_empty(line[: -len(ref)].strip()) for line in lines if line.endswith(f" {ref}")), "")


def _commit_or_empty(commit: str) -> str:
    return commit if _COMMIT.fullmatch(commit) else ""


def _read_text(path: Path) -> str:
    with path.open("rb") as file:
        return os.fsdecode(file.read(_MAX_FILE)).strip()
