"""Agrees on one run id for all ranks through the job's store, without a collective.

Rank 0 draws the id and sets it, and the others read it. They may find the id of a previous attempt: torchrun keeps its
store across restarts, and counts a restart only on the node that failed, so the nodes have no common number for the
attempt. So each rank *asks* by drawing a number from a counter, and rank 0 publishes the id with the number of the last
question that it has seen. An id that answers a rank's question belongs to its attempt, because torchrun ends all ranks
of an attempt before it starts the next.
"""

from __future__ import annotations

import contextlib
import datetime
import itertools
import logging
import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch.distributed

from otel_torchdist import guard
from otel_torchdist.model.kinds import RunIdState
from otel_torchdist.system.this_process.abandoned_calls import BACKGROUND_CALLS

if TYPE_CHECKING:
    from otel_torchdist.capture.core.recorder import Recorder
    from otel_torchdist.capture.core.run.peer_discovery import PeerDiscovery

_distributed: Any = torch.distributed  # its type stubs lack the stores
_SENDING_STORES: Final[tuple[Any, ...]] = (_distributed.TCPStore, _distributed.FileStore, _distributed.HashStore)


class BackgroundStore:
    """A clone of the program's store, in which another thread may block for minutes."""

    def __init__(self, store: Any) -> None:
        """Connect.

        Raises:
            RuntimeError: The store cannot be cloned: the `fake` backend's, MPI's, or a store written in Python.
            AttributeError: There is no store.
        """
        with BACKGROUND_CALLS:
            self._clone = store.clone()

    def set_timeout(self, timeout: datetime.timedelta) -> None:
        """Set the timeout of calls."""
        with BACKGROUND_CALLS:
            self._clone.set_timeout(timeout)

    def set(self, key: str, value: str) -> None:
        """Set a value. The store does not acknowledge it."""
        with BACKGROUND_CALLS:
            self._clone.set(key, value)

    def add(self, key: str, amount: int) -> int:
        """Add to a counter and return its new value."""
        with BACKGROUND_CALLS:
            return self._clone.add(key, amount)

    def check(self, keys: list[str]) -> bool:
        """Return whether all keys have values."""
        with BACKGROUND_CALLS:
            return self._clone.check(keys)

    def get(self, key: str) -> bytes:
        """Return a value. Waits for it if it is not set."""
        with BACKGROUND_CALLS:
            return self._clone.get(key)


def sends_only(store: Any) -> bool:
    """Return whether `set` on the program's store does not wait for another machine.

    `TCPStore.set` sends without waiting for an answer. Stores written in Python may do anything.
    """
    while type(store) is _distributed.PrefixStore:
        store = store.underlying_store
    return type(store) in _SENDING_STORES


_logger = logging.getLogger("otel_torchdist")

FIRST_PAUSE_S: Final = 0.05
POLL_COST_S: Final = 30e-6
"""Time in s that the store takes for a poll (measured: 35,000 polls a second). All ranks poll at the same time."""
MAX_PAUSE_S: Final = 1.0
"""Maximum time in s between polls. Rank 0 may arrive minutes later; ten thousand ranks must not overload the store."""
PROVISIONAL_AFTER_S: Final = 2.0
"""Time in s after which an id that answers no question is used provisionally: rank 0 may be stuck."""
ANSWER_S: Final = 60.0
"""Time in s for which rank 0 polls for questions, unless a collective of all ranks ends, which counts as an answer."""
STOP_S: Final = 1.0
"""Timeout in s at the end of a tape for a store that does not answer."""
_attempts = itertools.count()
"""Number of default groups of this process so far. Equal on ranks that re-create their default groups together."""


class _Published(NamedTuple):
    """The value that rank 0 has published.

    Attributes:
        run_id: The id; 0 if there is none yet.
        answers: Number of the last question that rank 0 had seen.
    """

    run_id: int
    answers: int


class RunIdAgreement:
    """The agreement on the run id of one recorder, on its own thread and through a clone of the store.

    Rank 0 sets the id immediately, through the program's connection, which only sends. A clone has to connect first,
    which may block while the store's machine looks up this machine's name.
    """

    def __init__(
        self,
        recorder: Recorder,
        store: Any,
        has_met_rank_0: Callable[[], bool],
        has_met_all: Callable[[], bool],
        discover_peers: Callable[[threading.Event], PeerDiscovery] | None = None,
        key: str = "",
        for_other_run: bool = False,
        first_pause_s: float = FIRST_PAUSE_S,
    ) -> None:
        """Start the agreement. Rank 0 sets an id before this returns, and the others poll for it.

        Args:
            recorder: The recorder that needs the id.
            store: The default group's store; None if there is none.
            has_met_rank_0: Returns whether a collective has ended that rank 0 entered after it set the id.
            has_met_all: Returns whether a collective has ended that all ranks entered.
            discover_peers: Creates the peer discovery, given the event that ends it. It runs for each id that is
                read.
            key: Key in the store; by default, a new key for each default group of this process.
            for_other_run: Set an id that only another run uses.
            first_pause_s: Seconds between the first polls of the store.
        """
        self._first_pause_s = first_pause_s
        identity = recorder.tape.identity
        self._tape = recorder.tape
        self._has_met_rank_0 = has_met_rank_0
        self._has_met_all = has_met_all
        self._key = key or f"otel_torchdist/run/{identity.world_size}/{next(_attempts)}"
        self._sets = for_other_run or identity.rank == 0
        self._has_readers = for_other_run or identity.world_size > 1
        self._store = store
        self._stopping = threading.Event()
        self._discovery = discover_peers(self._stopping) if discover_peers is not None else None
        self._discovered = 0
        self._settling = threading.Lock()
        self._is_settled = for_other_run
        self._threads: list[threading.Thread] = []
        new_id = int.from_bytes(os.urandom(16), "little")
        if not self._sets:
            self._begin("otel-torchdist-run-id", self._find, new_id)
            return
        try:
            is_set = self._send_immediately(new_id)
            if not is_set or self._has_readers:
                self._begin("otel-torchdist-run-id", self._set, new_id, is_set)
        except BaseException:  # from a signal handler: the program may continue with its group
            self._settle(new_id, RunIdState.UNAGREED)
            raise

    def stop(self) -> None:
        """Poll one last time, and wait at most `STOP_S` for the store."""
        self._stopping.set()
        deadline = time.monotonic() + STOP_S
        for thread in self._threads:  # the first may start the second meanwhile
            thread.join(max(deadline - time.monotonic(), 0.0))

    def _begin(self, name: str, target: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=target, args=args, name=name, daemon=True)
        thread.start()
        self._threads.append(thread)

    # --- rank 0 ---------------------------------------------------------------------------------------------------

    def _send_immediately(self, run_id: int) -> bool:
        """Set the id on the program's thread, if its store only sends. The id answers no question yet."""
        if not sends_only(self._store):
            return False
        try:
            if self._discovery is not None:
                self._discovery.prepare(self._store, run_id)
            self._send(self._store, _Published(run_id, 0))
        except RuntimeError as error:  # the store is gone
            guard.pass_on(error)
            return False
        self._settle(run_id, RunIdState.AGREED)
        return True

    def _set(self, run_id: int, is_set: bool) -> None:
        try:
            store = BackgroundStore(self._store)
            if self._discovery is not None and not is_set:
                self._discovery.prepare(store, run_id)
            published = self._publish(store, run_id)
            self._settle(run_id, RunIdState.AGREED)
        except Exception:  # fake, MPI and Python stores cannot be cloned, and Python code may raise anything
            self._settle(run_id, RunIdState.UNAGREED)
            return
        self._discover_peers(store, run_id)
        if self._has_readers:
            with contextlib.suppress(Exception):  # the store is gone, or our key holds another value
                self._answer(store, published)

    def _publish(self, store: Any, run_id: int) -> _Published:
        published = _Published(run_id, store.add(self._questions, 0))
        self._send(store, published)
        return published

    def _send(self, store: Any, published: _Published) -> None:
        store.set(self._key, f"{published.run_id:032x}/{published.answers}")

    def _answer(self, store: Any, published: _Published) -> None:
        """Publish the id again when a rank has asked, until another attempt has set its id."""
        pause, deadline = self._first_pause_s, time.monotonic() + ANSWER_S
        is_last_poll = False
        while not is_last_poll and not self._has_met_all() and time.monotonic() < deadline:
            is_last_poll = self._stopping.wait(pause)
            pause = min(pause * 1.5, MAX_PAUSE_S)
            if store.add(self._questions, 0) == published.answers:
                continue
            if self._read(store).run_id != published.run_id:
                return
            published = self._publish(store, published.run_id)
            pause = self._first_pause_s

    # --- the other ranks ------------------------------------------------------------------------------------------

    def _find(self, new_id: int) -> None:
        try:
            store = BackgroundStore(self._store)
            self._read_published(store, store.add(self._questions, 1))
        except Exception:  # the store cannot be cloned or is gone, or our key holds another value
            if not self._discovered:
                self._settle(new_id, RunIdState.UNAGREED)

    def _read_published(self, store: Any, question: int) -> None:
        """Poll until rank 0 has answered or the agreement is stopped."""
        first_pause_s = pause = self._first_pause_s + POLL_COST_S * self._tape.identity.world_size
        provisional_at = time.monotonic() + PROVISIONAL_AFTER_S
        is_last_poll = False
        while not is_last_poll:
            is_last_poll = self._stopping.wait(pause)
            pause = min(pause * 1.5, max(MAX_PAUSE_S, first_pause_s))
            has_met_rank_0 = self._has_met_rank_0()  # checked first: if true, rank 0 has set the id that is read next
            run_id, answers = self._read(store)
            if run_id and (answers >= question or has_met_rank_0):
                self._settle(run_id, RunIdState.AGREED)
                self._discover_peers(store, run_id)
                return
            if run_id and (is_last_poll or time.monotonic() >= provisional_at):
                self._tape.set_run_id(run_id, RunIdState.PROVISIONAL)
                self._discover_peers(store, run_id)

    # --- all ------------------------------------------------------------------------------------------------------

    @property
    def _questions(self) -> str:
        """Key of the counter of questions."""
        return f"{self._key}/questions"

    def _read(self, store: Any) -> _Published:
        """Read the published value. Checks first, because `get` blocks until the store's timeout."""
        if not store.check([self._key]):
            return _Published(0, 0)
        run_id, _, answers = store.get(self._key).decode().partition("/")
        return _Published(int(run_id, 16), int(answers))

    def _discover_peers(self, store: Any, run_id: int) -> None:
        """Let the nodes' agents discover each other. Without discovery, each agent judges from its node's ranks only.

        Runs on a separate thread because a node may join minutes later. An id of an earlier attempt leads to no agents,
        and the agents' rules keep entries of that attempt out of their verdicts.
        """
        before, self._discovered = self._discovered, run_id
        if self._discovery is None or run_id == before or self._stopping.is_set():
            return
        with contextlib.suppress(RuntimeError):  # no thread can be started, for example at interpreter exit
            self._begin("otel-torchdist-peers", self._run_discovery, self._discovery, store, run_id)

    def _run_discovery(self, discovery: PeerDiscovery, store: Any, run_id: int) -> None:
        try:
            discovery.discover(store, run_id)
        except Exception as error:
            if not self._stopping.is_set():
                _logger.warning("the agents of this job's nodes cannot find each other: %s", error)

    def _settle(self, run_id: int, state: RunIdState) -> None:
        with self._settling:
            if not self._is_settled:
                self._is_settled = True
                self._tape.set_run_id(run_id, state)
