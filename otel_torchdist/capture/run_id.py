"""One id for the run on all of its ranks, agreed through the job's store, without a collective.

Rank 0 draws it and sets it; the others read it. What a rank reads first may be left over from an attempt before
(torchrun's shared store kept the very same key through restarts), so it is provisional, and read again and again, until
rank 0 must have set the new one. What is provisional serves all the same: a job may hang in its first collective.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import secrets
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from otel_torchdist.tape.layout import RunIdState

if TYPE_CHECKING:
    from otel_torchdist.capture.meeting import Meeting
    from otel_torchdist.capture.recorder import Recorder

_logger = logging.getLogger("otel_torchdist")

SET_DEADLINE_S: Final = 2.0
"""How long rank 0 waits, where it creates the default group anyway, for its `set` to be on its way."""
FIRST_LOOK_S: Final = 0.05
LONGEST_LOOK_S: Final = 1.0
"""Rank 0 may come minutes later than the others; ten thousand of them must not drown the store until then."""
AGAIN_AFTER_S: Final = 0.5
"""After so long what was found is read again, and then after twice as long each time."""
SURE_AFTER_S: Final = 20.0
"""Most ranks of a mesh share no group with rank 0. What they still find after this time is of this attempt."""
STOP_S: Final = 1.0
_attempts = itertools.count()
"""Default groups of this process so far: ranks that re-create theirs together agree on it."""


class RunIdAgreement:
    """Agrees on the run id of one recorder, on a thread and over a clone of the store."""

    def __init__(
        self,
        recorder: Recorder,
        store: Any,
        has_met_rank_0: Callable[[], bool],
        meeting: Callable[[threading.Event], Meeting] | None = None,
    ) -> None:
        """Start: rank 0 sets an id, the others begin to look for it.

        Args:
            recorder: Whose id it is.
            store: The default group's; None where there is none.
            has_met_rank_0: Whether a collective has ended that rank 0 cannot have entered before it had set the id.
            meeting: Makes, from the event that ends it, the meeting of the nodes; held for each id that is found.
        """
        identity = recorder.tape.identity
        self._tape = recorder.tape
        self._has_met_rank_0 = has_met_rank_0
        self._key = "otel_torchdist/run/{}/{}/{}".format(
            os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), identity.world_size, next(_attempts)
        )
        self._store = store
        self._stopping = threading.Event()
        self._meeting = meeting(self._stopping) if meeting is not None else None
        self._met = 0
        self._has_set = threading.Event()
        self._settling = threading.Lock()
        self._is_settled = False
        self._threads: list[threading.Thread] = []
        own_id = secrets.randbits(128)
        agree = self._set if identity.rank == 0 else self._find
        self._begin("otel-torchdist-run-id", agree, own_id)
        if identity.rank == 0:
            self._has_set.wait(SET_DEADLINE_S)
            self._settle(own_id, RunIdState.UNAGREED)

    def stop(self) -> None:
        """Look a last time. A thread that is inside torch when the interpreter ends would abort the process."""
        self._stopping.set()
        deadline = time.monotonic() + STOP_S
        for thread in self._threads:  # the first may start the second meanwhile
            thread.join(max(deadline - time.monotonic(), 0.0))

    def is_over(self) -> bool:
        """Whether all is found that can be."""
        return not any(thread.is_alive() for thread in list(self._threads))

    def _begin(self, name: str, target: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=target, args=args, name=name, daemon=True)
        thread.start()
        self._threads.append(thread)

    def _set(self, run_id: int) -> None:
        try:
            store = self._store.clone()
            if self._meeting is not None:
                self._meeting.prepare(store, run_id)
            store.set(self._key, f"{run_id:032x}")
        except (RuntimeError, AttributeError, TypeError):  # fake, MPI and Python stores cannot be cloned
            self._settle(run_id, RunIdState.UNAGREED)
        else:
            self._settle(run_id, RunIdState.AGREED)
            self._has_set.set()
            self._meet(store, run_id)
        finally:
            self._has_set.set()

    def _find(self, own_id: int) -> None:
        try:
            store = self._store.clone()
            found = self._look_until_found(store)
        except (RuntimeError, AttributeError, TypeError, ValueError):
            # It cannot be cloned, it is gone, or somebody else's value lies there.
            self._settle(own_id, RunIdState.UNAGREED)
            return
        # Later the store may go before us, for its host ends when it likes: what was found is then as good as it gets.
        with contextlib.suppress(RuntimeError, ValueError):
            if found and self._look_until_sure(store) and (run_id := self._read(store)):
                self._settle(run_id, RunIdState.AGREED)
                self._meet(store, run_id)

    def _assume(self, store: Any, run_id: int) -> None:
        """Go on with what the store has, as long as nothing is known for certain."""
        if run_id:
            self._tape.set_run_id(run_id, RunIdState.PROVISIONAL)
            self._meet(store, run_id)

    def _meet(self, store: Any, run_id: int) -> None:
        """Have the nodes' agents find each other; without that each of them judges by what it sees itself.

        On a thread of its own, for a node may come minutes later. Under an id that an earlier attempt has left there
        is nothing to find, and the agents' own rules keep what is left of it out of their verdicts.
        """
        if self._meeting is None or run_id == self._met or self._stopping.is_set():
            return
        self._met = run_id
        with contextlib.suppress(RuntimeError):  # no thread is to be had, at the interpreter's end for one
            self._begin("otel-torchdist-meeting", self._hold, self._meeting, store, run_id)

    def _hold(self, meeting: Meeting, store: Any, run_id: int) -> None:
        try:
            meeting.hold(store, run_id)
        except (RuntimeError, OSError, ValueError) as error:
            if not self._stopping.is_set():
                _logger.warning("the agents of this job's nodes cannot find each other: %s", error)

    def _look_until_found(self, store: Any) -> bool:
        pause, is_last_look = FIRST_LOOK_S, False
        while not (run_id := self._read(store)):
            if is_last_look:
                return False
            is_last_look = self._stopping.wait(pause)
            pause = min(pause * 1.5, LONGEST_LOOK_S)
        self._assume(store, run_id)
        return True

    def _look_until_sure(self, store: Any) -> bool:
        """Wait until what the store has is of this attempt; False when we are stopped before."""
        began = time.monotonic()
        waited_s, look_at_s = 0.0, AGAIN_AFTER_S
        while not self._has_met_rank_0() and waited_s < SURE_AFTER_S:
            if self._stopping.wait(LONGEST_LOOK_S / 4):
                return self._has_met_rank_0()
            waited_s = time.monotonic() - began
            if waited_s >= look_at_s:
                look_at_s *= 2
                self._assume(store, self._read(store))
        return True

    def _read(self, store: Any) -> int:
        """What rank 0 has set, 0 if nothing; `get` alone would block until the store's own timeout."""
        return int(store.get(self._key), 16) if store.check([self._key]) else 0

    def _settle(self, run_id: int, state: RunIdState) -> None:
        with self._settling:
            if not self._is_settled:
                self._is_settled = True
                self._tape.set_run_id(run_id, state)
