"""Takes a sampling profile of this process's threads.

A thread of ours reads their stacks several times a second. Unlike tracing, this changes nothing in the program's
frames. Sampling needs the GIL, so threads are sampled where they release it, and never while native code holds it.
"""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from otel_torchdist import guard
from otel_torchdist.capture.core.call_sites import site_of
from otel_torchdist.capture.core.requests.stacks import frames_of, native_id_of, running_threads
from otel_torchdist.node.job.requests.profile_file import NOT_RUNNING, Profile, ProfiledThread, write_profile
from otel_torchdist.tape.layout import MAX_PROFILE_RATE, MAX_PROFILE_S

if TYPE_CHECKING:
    from types import CodeType

    from otel_torchdist.tape.live_words import ProfileRequest
    from otel_torchdist.tape.writer import TapeWriter

MAX_STACKS: Final = 20_000
"""Maximum number of different stacks in a profile. Recursive programs have many."""
MAX_SAMPLES: Final = 400_000
"""Maximum number of samples in a profile, over all threads."""
_OURS: Final = ("otel-torchdist", "torchdist-")
_logger = logging.getLogger("otel_torchdist")

_Stack = tuple[tuple["CodeType", int | None], ...]


class Sampling:
    """A profile that is being taken."""

    def __init__(self, tape: TapeWriter, request: ProfileRequest) -> None:
        """Start sampling on a separate thread."""
        self._tape = tape
        self._request = request
        self._stopping = threading.Event()
        self._times_ns: list[int] = []
        self._indices: dict[_Stack, int] = {}
        self._stacks: dict[int, list[int]] = {}
        self._names: dict[int, tuple[int, str]] = {}
        self._samples = 0
        self._thread = threading.Thread(target=self._run, name="otel-torchdist-profile", daemon=True)
        self._thread.start()

    def is_for(self, request: ProfileRequest) -> bool:
        """Return whether this profile answers the request."""
        return self._request == request

    def stop(self) -> None:
        """End the profile, and wait up to a second for its file."""
        self._stopping.set()
        self._thread.join(1.0)

    def _run(self) -> None:
        with guard.guarded("profile"):
            is_cut = self._sample()
            self._write(self._tape.path, is_cut)
        self._tape.answer_profile(self._request)

    def _sample(self) -> bool:
        """Sample for the requested time. Return whether sampling ended early."""
        pause_s = 1 / min(max(self._request.rate, 1), MAX_PROFILE_RATE)
        due = time.monotonic()
        end = due + min(self._request.seconds, MAX_PROFILE_S)
        while due < end:
            if self._stopping.wait(max(due - time.monotonic(), 0)) or self._samples >= MAX_SAMPLES:
                return True
            self._take()
            due = max(due + pause_s, time.monotonic())  # missed samples are not made up for
        return False

    def _take(self) -> None:
        """Take one sample of all threads but ours."""
        sample = len(self._times_ns)
        self._times_ns.append(time.monotonic_ns())
        for ident in running_threads():
            if ident not in self._names:
                self._learn_names()
            if self._names.setdefault(ident, (0, f"thread {ident}"))[1].startswith(_OURS):
                continue
            stack = tuple(frames_of(ident))
            index = self._indices.get(stack, NOT_RUNNING)
            if index == NOT_RUNNING and stack and len(self._indices) < MAX_STACKS:
                index = self._indices[stack] = len(self._indices)
            stacks = self._stacks.setdefault(ident, [])
            stacks += [NOT_RUNNING] * (sample - len(stacks))
            stacks.append(index)
            self._samples += 1

    def _learn_names(self) -> None:
        main = threading.main_thread()
        for thread in threading.enumerate():
            if thread.ident is not None:
                name = "MainThread" if thread is main else thread.name
                self._names[thread.ident] = (native_id_of(thread), name)

    def _write(self, tape: Path, is_cut: bool) -> None:
        count, main = len(self._times_ns), threading.main_thread().ident
        threads = [
            ProfiledThread(*self._names[ident], tuple(stacks + [NOT_RUNNING] * (count - len(stacks))))
            for ident, stacks in sorted(self._stacks.items(), key=lambda item: item[0] != main)
        ]
        stacks = tuple(tuple(site_of(code, line) for code, line in stack) for stack in self._indices)
        try:
            write_profile(tape, self._request.number, Profile(tuple(self._times_ns), stacks, tuple(threads), is_cut))
        except OSError as error:
            guard.pass_on(error)
            _logger.warning("the requested profile cannot be written beside %s: %s", tape, error.strerror)
