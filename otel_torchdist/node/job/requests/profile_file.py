"""The profile of one process: samples of all threads' stacks, written beside its tape when a reader asks for it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from msgspec import Meta

from otel_torchdist.errors import TorchDistError
from otel_torchdist.model.names import CallSiteName
from otel_torchdist.model.text import readable
from otel_torchdist.system.files.others import read_regular, reason
from otel_torchdist.system.files.owned import replace_at_once
from otel_torchdist.tape.names.decoding import CallSiteRead, DecodingError, decode_json, shown_site
from otel_torchdist.tape.names.writer import site_document

MAX_BYTES: Final = 32 << 20
NOT_RUNNING: Final = -1
"""Replaces the index of a stack: the thread did not exist at that sample, or ran no Python."""


class ProfileError(TorchDistError):
    """A profile cannot be read; the message gives the reason."""


@dataclass(frozen=True, slots=True)
class ProfiledThread:
    """The samples of one thread.

    Attributes:
        thread: Native thread id, as in `Operation.thread`; 0 if unknown.
        name: Name of the thread.
        stacks: Index of the stack at each sample, or `NOT_RUNNING`.
    """

    thread: int
    name: str
    stacks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Profile:
    """The samples of one process.

    Attributes:
        times_ns: Monotonic time of each sample.
        stacks: The distinct stacks, innermost frame first.
        threads: The threads, main thread first.
        is_cut: Whether sampling ended early, because it reached a limit or the tape ended.
    """

    times_ns: tuple[int, ...]
    stacks: tuple[tuple[CallSiteName, ...], ...]
    threads: tuple[ProfiledThread, ...]
    is_cut: bool


def profile_path(tape: Path) -> Path:
    """Return the path of the profile of the process that writes `tape`."""
    return tape.with_suffix(".profile")


def write_profile(tape: Path, request: int, profile: Profile) -> None:
    """Replace the profile beside a tape atomically.

    Raises:
        OSError: The file cannot be written.
    """
    sites: dict[CallSiteName, int] = {}
    stacks = [[sites.setdefault(frame, len(sites)) for frame in stack] for stack in profile.stacks]
    body = {
        "request": request,
        "times_ns": profile.times_ns,
        "sites": [site_document(site) for site in sites],
        "stacks": stacks,
        "threads": [
            {"thread": thread.thread, "name": thread.name, "stacks": thread.stacks} for thread in profile.threads
        ],
        "is_cut": profile.is_cut,
    }
    content = json.dumps(body, separators=(",", ":")).encode()
    replace_at_once(profile_path(tape), tape.with_suffix(".profile.new"), content)


_Index = Annotated[int, Meta(ge=NOT_RUNNING, le=1 << 31)]


@dataclass(frozen=True, slots=True)
class _Thread:
    thread: Annotated[int, Meta(ge=0, le=1 << 31)]
    name: str
    stacks: tuple[_Index, ...]


@dataclass(frozen=True, slots=True)
class _Answer:
    request: int
    times_ns: tuple[Annotated[int, Meta(ge=0)], ...]
    sites: tuple[CallSiteRead, ...]
    stacks: tuple[tuple[_Index, ...], ...]
    threads: tuple[_Thread, ...]
    is_cut: bool


def read_profile(tape: Path, request: int, owner: int | None = None) -> Profile:
    """Read the profile that answers `request`.

    Args:
        tape: The tape.
        request: Number of the request.
        owner: The user who must own the file; None for any.

    Raises:
        ProfileError: There is no profile, it answers another request, or it cannot be read.
    """
    try:
        answer = decode_json(read_regular(profile_path(tape), MAX_BYTES, owner), _Answer)
    except OSError as error:
        raise ProfileError(f"{profile_path(tape)} cannot be read: {reason(error)}") from error
    except DecodingError as error:
        raise ProfileError(f"{profile_path(tape)} is damaged: {error}") from error
    if answer.request != request:
        raise ProfileError("another profile of this rank has been requested meanwhile, and replaces this one")
    sites = tuple(map(shown_site, answer.sites))
    try:
        stacks = tuple(tuple(sites[index] for index in stack) for stack in answer.stacks)
    except IndexError as error:
        raise ProfileError(f"{profile_path(tape)} is damaged: a frame has no line") from error
    count = len(answer.stacks)
    threads = tuple(
        ProfiledThread(thread.thread, readable(thread.name), tuple(index for index in thread.stacks if index < count))
        for thread in answer.threads
    )
    return Profile(answer.times_ns, stacks, threads, answer.is_cut)
