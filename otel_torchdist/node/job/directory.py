"""The directories of tapes: `<base>/<job key>/<nonce>.tape`, in memory and owned by one user."""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import itertools
import os
import re
import stat
import time
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Final

from otel_torchdist.environment_variables import OTEL_PYTHON_TORCHDIST_TAPE_ON_DISK
from otel_torchdist.errors import TapeError
from otel_torchdist.system.files.locks import exclusive_lock
from otel_torchdist.system.files.others import is_gone
from otel_torchdist.tape.identity import pid_namespace, process_start_ticks

_IN_MEMORY: Final = frozenset({"tmpfs", "ramfs"})
READER_LOCK_NAME: Final = "watch.lock"
"""Held by the process that reads the tapes of a directory; see `tapes.ReaderLock`."""
START_LOCK_NAME: Final = "start.lock"
"""Locked by a rank that starts an agent; contains the times of starts."""
CHECKPOINT_NAME: Final = "agent.checkpoint"
"""Reading positions of an agent; first written soon after its start."""
SPACE_DIVISOR: Final = 8
"""Tapes of live ranks, and leftovers of ended ranks, may each fill at most 1/SPACE_DIVISOR of the file system."""
_KEY_PREFIX: Final = "job-"
_KEY: Final = re.compile(_KEY_PREFIX + "[0-9a-f]{16}")
_MAX_ATTEMPTS: Final = 16
BASE_MODE: Final = 0o711
MAX_ENTRIES: Final = 16_384
"""Maximum entries read from a directory, so that one overfull directory does not delay the others."""
_FLAGS_WITH_LINKS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_OPEN_FLAGS: Final = _FLAGS_WITH_LINKS | os.O_NOFOLLOW


def base_directory(config_tape_dir: Path | None, on_disk: bool) -> Path:
    """Return the base directory of this user's job directories. It is created if missing, but its parent is not.

    Args:
        config_tape_dir: The configured directory; None for `/dev/shm/otel-torchdist-<uid>`. If another user owns that
            path, a substitute beside it is returned.
        on_disk: Whether it may be on a disk, whose write-back can delay the training.

    Raises:
        TapeError: It cannot be created, is not a directory owned by this user, or is on a disk although that is not
            allowed.
    """
    path = config_tape_dir or usual_base()
    may_change_mode = path == usual_base() or not os.path.lexists(path)
    if is_taken(path):
        try:
            path = make_substitute(path)
        except OSError as error:
            raise TapeError(f"{path}: belongs to another user, and nothing can replace it: {error}") from error
    file = _open_private(path)
    try:
        if may_change_mode:
            _let_others_traverse(file)
        filesystem = _filesystem(os.fstat(file).st_dev)
    finally:
        os.close(file)
    if on_disk or filesystem in _IN_MEMORY:
        return path
    raise TapeError(
        f"{path}: refused for tapes: it lies on {filesystem} and not in memory (tmpfs), so that write-back can hold "
        f"up the training; {OTEL_PYTHON_TORCHDIST_TAPE_ON_DISK}=true allows it"
    )


def job_directory(base: Path, key: str) -> Path:
    """Return the directory of one job's tapes on this node, created if missing.

    Raises:
        TapeError: It cannot be created, or is not a directory owned by this user.
    """
    path = base / key
    os.close(_open_private(path))
    return path


def private_directory(path: Path) -> None:
    """Create a directory that only its owner can change, and its parents, unless it exists.

    Raises:
        OSError: A parent cannot be created.
        TapeError: It cannot be created, or is not a directory owned by this user.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    os.close(_open_private(path))


def job_directories(base: Path) -> list[Path]:
    """Return the job directories, as `list_jobs` does; an empty list if they cannot be read."""
    with contextlib.suppress(OSError):
        return list_jobs(base)
    return []


def tapes_in(directory: Path) -> list[Path]:
    """Return the tapes, as `list_tapes` does; an empty list if they cannot be read."""
    with contextlib.suppress(OSError):
        return list_tapes(directory)
    return []


def is_tape_name(name: str) -> bool:
    """Return whether a file name is a tape's. A tape that is still being created has another name."""
    return name.endswith(".tape") and not name.startswith(".")


def list_jobs(base: Path) -> list[Path]:
    """Return the job directories of a base directory, sorted by name; links and other names are left out.

    Raises:
        OSError: The directory cannot be read, for example for lack of descriptors. A missing directory counts as empty.
    """
    return _listed(
        base, _FLAGS_WITH_LINKS, lambda entry: bool(_KEY.fullmatch(entry.name)) and entry.is_dir(follow_symlinks=False)
    )


def list_tapes(directory: Path, owner: int | None = None) -> list[Path]:
    """Return the tapes of a job directory, sorted by name; an empty list if it does not exist or is a link.

    Args:
        directory: The job directory.
        owner: The user who must own the directory; None for any.

    Raises:
        OSError: As for `list_jobs`, or the directory belongs to another user.
    """
    return _listed(
        directory,
        _OPEN_FLAGS,
        lambda entry: is_tape_name(entry.name) and entry.is_file(follow_symlinks=False),
        owner,
    )


def _listed(
    directory: Path, flags: int, is_wanted: Callable[[os.DirEntry[str]], bool], owner: int | None = None
) -> list[Path]:
    try:
        file = os.open(directory, flags)
    except OSError as error:
        if is_gone(error):
            return []
        raise
    try:
        actual_owner = os.fstat(file).st_uid
        if owner not in (None, actual_owner):
            raise OSError(errno.EPERM, f"it belongs to user {actual_owner} and not to user {owner}")
        with os.scandir(file) as entries:
            names = sorted(entry.name for entry in itertools.islice(entries, MAX_ENTRIES) if is_wanted(entry))
    finally:
        os.close(file)
    return [directory / name for name in names]


def job_key(environ: Mapping[str, str], ray_train_run: str = "") -> str:
    """Return the name of the job directory, derived from values that only the ranks of one job on a node share.

    The parent process is the last resort, because a wrapper script gives each rank its own parent. Addresses are valid
    in one network namespace only, and pids in one PID namespace.

    Args:
        environ: The environment of a rank.
        ray_train_run: Ray Train's id of the training, which stays the same when workers are replaced; '' without Ray.
    """
    shared = ("ray", ray_train_run) if ray_train_run else _shared_by_local_ranks(environ)
    text = "\0".join(shared)
    return _KEY_PREFIX + hashlib.blake2b(text.encode(errors="surrogateescape"), digest_size=8).hexdigest()


def _shared_by_local_ranks(environ: Mapping[str, str]) -> tuple[str, ...]:
    address = environ.get("MASTER_ADDR", ""), environ.get("MASTER_PORT", "")
    run_id = environ.get("TORCHELASTIC_RUN_ID", "")
    if run_id:
        log_directory = directory_of_torchrun(environ.get("TORCHELASTIC_ERROR_FILE", ""))
        if log_directory:
            return "torchrun", log_directory
        if run_id != "none":  # the default id, which all jobs share
            return "torchrun", run_id
    elif _is_slurm_task(environ):
        # One interactive step may run many jobs, so the address is part of the key.
        return "slurm", environ["SLURM_JOB_ID"], environ["SLURM_STEP_ID"], *address
    elif environ.get("PMIX_NAMESPACE") and environ.get("OMPI_COMM_WORLD_SIZE"):
        # Open MPI's number of an mpirun: ranks share it even if a script starts each, and a file leads them together.
        return "mpi", environ["PMIX_NAMESPACE"], *address
    if all(address):
        return "address", str(_network_namespace()), *address
    parent = os.getppid()
    return "parent", str(pid_namespace()), str(parent), str(process_start_ticks(parent))


def directory_of_torchrun(error_file: str) -> str:
    """Return the log directory of the torchrun process that started this rank; '' if unknown.

    Derived from `<directory>/attempt_<n>/<local rank>/error.json`. The name is from `mkdtemp`, so no other job has it,
    not even one with the same run id. Unlike the port, it stays the same across restarts.
    """
    path = PurePosixPath(error_file)
    if len(path.parts) < 5 or not path.parts[-3].startswith("attempt_"):
        return ""
    return str(path.parents[2])


def _is_slurm_task(environ: Mapping[str, str]) -> bool:
    """Return whether ranks are tasks of a Slurm step, or children of its tasks. A single task may be a user's shell."""
    tasks = environ.get("SLURM_STEP_NUM_TASKS", "")
    return bool(environ.get("SLURM_JOB_ID") and environ.get("SLURM_STEP_ID")) and tasks not in ("", "1")


def _network_namespace() -> int:
    try:
        return os.stat("/proc/self/ns/net").st_ino
    except OSError:
        return 0


def _open_private(path: Path) -> int:
    """Open a directory that only its owner can change, and create it if missing.

    Raises:
        TapeError: The path is not such a directory, or it cannot be created.
    """
    try:
        file = _make_and_open(path)
    except OSError as error:
        raise TapeError(f"{path}: cannot be used for tapes: {error}") from error
    info = os.fstat(file)
    objection = ""
    if info.st_uid != os.geteuid():
        objection = f"it belongs to user {info.st_uid} and not to user {os.geteuid()}"
    elif info.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        objection = f"others may write to it (mode {stat.S_IMODE(info.st_mode):04o})"
    if not objection:
        return file
    os.close(file)
    raise TapeError(f"{path}: refused for tapes: {objection}")


def _make_and_open(path: Path) -> int:
    """Open a directory, and create it if missing. Retries if a clean-up removes it in between."""
    for _ in range(_MAX_ATTEMPTS - 1):
        with contextlib.suppress(FileNotFoundError):
            return _make_and_open_once(path)
    return _make_and_open_once(path)


def _make_and_open_once(path: Path) -> int:
    with contextlib.suppress(FileExistsError):
        path.mkdir(0o700)
    kind = os.lstat(path).st_mode
    if not stat.S_ISDIR(kind):
        objection = "a link" if stat.S_ISLNK(kind) else "not a directory"
        raise TapeError(f"{path}: refused for tapes: it is {objection}")
    return os.open(path, _OPEN_FLAGS)


def _let_others_traverse(file: int) -> None:
    """Let other users traverse a base directory, because Prometheus reads `prometheus/` in it as another user.

    They cannot list it, and its job directories stay private. Only mode 0700 is changed, which earlier versions or a
    strict umask have set; any other mode is the user's choice.
    """
    if stat.S_IMODE(os.fstat(file).st_mode) == 0o700:
        with contextlib.suppress(OSError):
            os.fchmod(file, BASE_MODE)


@functools.lru_cache(maxsize=4)
def _filesystem(device: int) -> str:
    """Return the type of the mounted file system with this device number. Cached, because every tape needs it."""
    number = f"{os.major(device)}:{os.minor(device)}"
    try:
        mounts = Path("/proc/self/mountinfo").read_text(errors="replace").splitlines()
    except OSError:
        mounts = []
    for mount in mounts:
        mount_fields, _, kind = mount.partition(" - ")
        if mount_fields.split()[2] == number:
            return kind.split()[0]
    return "an unknown file system"


# --- the base directory in /dev/shm -----------------------------------------------------------------------------------
# The default base directory of a user, and a substitute if another user owns that path.
# Everyone may create directories in /dev/shm, and the default name is predictable. A container engine that mounts the
# directory creates it as root; another user may create it out of malice. The substitute has 64 random bits in its name,
# so that nobody can create it first; its owner identifies it.


MEMORY: Final = Path("/dev/shm")
USUAL_BASES: Final = re.compile("otel-torchdist-[0-9]{1,10}(?:-[0-9a-f]{16})?")
"""Pattern of the names of base directories in `/dev/shm`."""
TAKEN: Final = (
    "%s belongs to another user: tapes are in %s instead. Agents, `watch` and `diagnose` find them there; Prometheus "
    "finds its targets only if its `file_sd_configs` name that directory"
)
_LOCK_TIMEOUT_S: Final = 1.0
_RETRY_S: Final = 0.002
_SETTLE_S: Final = 1.0


def usual_base() -> Path:
    """Return the default base directory of this process's user."""
    return MEMORY / f"otel-torchdist-{os.getuid()}"


def is_taken(base: Path) -> bool:
    """Return whether `base` is the default base directory and another user owns it."""
    with contextlib.suppress(OSError):
        return base == usual_base() and base.lstat().st_uid != os.geteuid()
    return False


def substitute(base: Path) -> Path | None:
    """Return this user's substitute for a base directory; None if there is none."""
    pattern = re.compile(f"{re.escape(base.name)}-[0-9a-f]{{16}}")
    names: list[str] = []
    with contextlib.suppress(OSError), os.scandir(base.parent) as entries:
        for entry in entries:
            if pattern.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
                with contextlib.suppress(OSError):
                    if entry.stat(follow_symlinks=False).st_uid == os.geteuid():
                        names.append(entry.name)
    return base.parent / min(names) if names else None


def make_substitute(base: Path) -> Path:
    """Return the substitute for a base directory, and create it if missing. All ranks of a node get the same one.

    Ranks lock /dev/shm while they look for it and create it. Any user can hold that lock, so a rank gives up waiting
    after `_LOCK_TIMEOUT_S`. Without the lock, several ranks may create a directory: each waits `_SETTLE_S`, and
    then all use the first by name.

    Raises:
        OSError: It cannot be created.
    """
    deadline = time.monotonic() + _LOCK_TIMEOUT_S
    while True:
        with exclusive_lock(base.parent) as alone:
            if alone or time.monotonic() > deadline:
                existing = substitute(base)
                if existing is not None:
                    return existing
                created = base.with_name(f"{base.name}-{os.urandom(8).hex()}")
                created.mkdir(0o700)
                if alone:
                    return created
                time.sleep(_SETTLE_S)
                return substitute(base) or created
        time.sleep(_RETRY_S)
