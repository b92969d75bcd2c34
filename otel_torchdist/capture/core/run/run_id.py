"""Agrees on one run id for all ranks through the job's store, without a collective.

Rank 0 draws the id and sets it; the others read it. What they find may be left over from a previous attempt: torchrun
keeps its store across restarts, and counts a restart only on the node that failed, so no name for the attempt is the
same everywhere. So each rank *asks* by drawing a number, and rank 0 publishes with the id the number of the last
question it has seen. An id that answers a rank's own question belongs to its own attempt, because torchrun ends all
ranks of an attempt before it starts the next.
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

_distributed: Any = torch.distributed  # its types lack the stores
_SENDS: Final[tuple[Any, ...]] = (_distributed.TCPStore, _distributed.FileStore, _distributed.HashStore)


class BackgroundStore:
    """A clone of a store: another thread of the program may block in the original for minutes."""

    def __init__(self, store: Any) -> None:
        """Connect.

        Raises:
            RuntimeError: The store cannot be cloned: the `fake` backend's, MPI's, or one written in Python.
            AttributeError: There is no store.
        """
        with BACKGROUND_CALLS:
            self._clone = store.clone()

    def set_timeout(self, timeout: datetime.timedelta) -> None:
        """Bound how long a call may wait for the store."""
        with BACKGROUND_CALLS:
            self._clone.set_timeout(timeout)

    def set(self, key: str, value: str) -> None:
        """Set a value; the store does not acknowledge it."""
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
        """Return a value; waits for it if there is none."""
        with BACKGROUND_CALLS:
            return self._clone.get(key)


def sets_at_once(store: Any) -> bool:
    """Return whether `set` on the program's own store only sends, or stores in this machine.

    `TCPStore.set` waits for no answer. Stores written in Python may do anything.
    """
    while type(store) is _distributed.PrefixStore:
        store = store.underlying_store
    return type(store) in _SENDS


_logger = logging.getLogger("otel_torchdist")

FIRST_PAUSE_S: Final = 0.05
READ_S: Final = 30e-6
"""Cost of a poll to the store (measured: 35,000 a second). All ranks poll at once, and the store has other work."""
LONGEST_PAUSE_S: Final = 1.0
"""Rank 0 may arrive minutes after the others; ten thousand ranks must not overload the store until then."""
DOUBT_S: Final = 2.0
"""After this time an id that is no answer is used provisionally: rank 0 may be stuck, and that may be the stall."""
ANSWER_S: Final = 60.0
"""How long rank 0 polls for questions, unless a collective of all ranks has ended: that is as good as an answer."""
STOP_S: Final = 1.0
"""How long the end of a tape waits for a store that does not answer."""
_attempts = itertools.count()
"""Number of default groups of this process so far; ranks that re-create theirs together agree on it."""


class _Published(NamedTuple):
    """What rank 0 has published.

    Attributes:
        run_id: The id; 0 while there is none.
        answers: Number of the last question it had seen.
    """

    run_id: int
    answers: int


class RunIdAgreement:
    """Agrees on the run id of one recorder, on its own thread and through a clone of the store.

    Rank 0 sets the id at once, through the program's own connection: that only sends. A clone connects first, and may
    wait for that as long as the machine of the store looks up this one's name.
    """

    def __init__(
        self,
        recorder: Recorder,
        store: Any,
        has_met_rank_0: Callable[[], bool],
        has_met_all: Callable[[], bool],
        discover_peers: Callable[[threading.Event], PeerDiscovery] | None = None,
        key: str = "",
        for_others: bool = False,
        first_pause_s: float = FIRST_PAUSE_S,
    ) -> None:
        """Start the agreement: rank 0 sets an id before this returns, the others poll for it.

        Args:
            recorder: The recorder that needs the id.
            store: The default group's store; None if there is none.
            has_met_rank_0: Whether a collective has ended that rank 0 cannot have entered before it set the id.
            has_met_all: Whether a collective has ended that all ranks entered.
            discover_peers: Creates the peer discovery, given the event that ends it; it runs for each id that is
                found.
            key: Where in the store; by default one for each default group of this process.
            for_others: Whether this process, of another run, only draws and sets an id for those that poll for it.
            first_pause_s: Seconds between the first polls of the store.
        """
        self._first_pause_s = first_pause_s
        identity = recorder.tape.identity
        self._tape = recorder.tape
        self._has_met_rank_0 = has_met_rank_0
        self._has_met_all = has_met_all
        self._key = key or f"otel_torchdist/run/{identity.world_size}/{next(_attempts)}"
        self._sets = for_others or identity.rank == 0
        self._has_readers = for_others or identity.world_size > 1
        self._store = store
        self._stopping = threading.Event()
        self._discovery = discover_peers(self._stopping) if discover_peers is not None else None
        self._met = 0
        self._settling = threading.Lock()
        self._is_settled = for_others
        self._threads: list[threading.Thread] = []
        own_id = int.from_bytes(os.urandom(16), "little")
        if not self._sets:
            self._begin("otel-torchdist-run-id", self._find, own_id)
            return
        try:
            is_set = self._set_at_once(own_id)
            if not is_set or self._has_readers:
                self._begin("otel-torchdist-run-id", self._set, own_id, is_set)
        except BaseException:  # raised by a signal handler of the program's, which goes on with its group
            self._settle(own_id, RunIdState.UNAGREED)
            raise

    def stop(self) -> None:
        """Poll one last time, but do not wait long for a store that does not answer."""
        self._stopping.set()
        deadline = time.monotonic() + STOP_S
        for thread in self._threads:  # the first may start the second meanwhile
            thread.join(max(deadline - time.monotonic(), 0.0))

    def _begin(self, name: str, target: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=target, args=args, name=name, daemon=True)
        thread.start()
        self._threads.append(thread)

    # --- rank 0 ---------------------------------------------------------------------------------------------------

    def _set_at_once(self, run_id: int) -> bool:
        """Set the id on the program's thread, if its store does not wait for an answer; it answers no question yet."""
        if not sets_at_once(self._store):
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
        except Exception:  # fake, MPI and Python stores cannot be cloned, and a program's own may raise anything
            self._settle(run_id, RunIdState.UNAGREED)
            return
        self._meet(store, run_id)
        if self._has_readers:
            with contextlib.suppress(Exception):  # the store is gone, or our key holds something else
                self._answer(store, published)

    def _publish(self, store: Any, run_id: int) -> _Published:
        published = _Published(run_id, store.add(self._questions, 0))
        self._send(store, published)
        return published

    def _send(self, store: Any, published: _Published) -> None:
        store.set(self._key, f"{published.run_id:032x}/{published.answers}")

    def _answer(self, store: Any, published: _Published) -> None:
        """Publish the id again whenever a rank has asked, until another attempt has set its own."""
        pause, deadline = self._first_pause_s, time.monotonic() + ANSWER_S
        is_last_look = False
        while not is_last_look and not self._has_met_all() and time.monotonic() < deadline:
            is_last_look = self._stopping.wait(pause)
            pause = min(pause * 1.5, LONGEST_PAUSE_S)
            if store.add(self._questions, 0) == published.answers:
                continue
            if self._read(store).run_id != published.run_id:
                return
            published = self._publish(store, published.run_id)
            pause = self._first_pause_s

    # --- the other ranks ------------------------------------------------------------------------------------------

    def _find(self, own_id: int) -> None:
        try:
            store = BackgroundStore(self._store)
            self._read_published(store, store.add(self._questions, 1))
        except Exception:  # the store cannot be cloned or is gone, or our key holds something else
            if not self._met:
                self._settle(own_id, RunIdState.UNAGREED)

    def _read_published(self, store: Any, question: int) -> None:
        """Poll until rank 0 has answered or the agreement is stopped."""
        first_pause_s = pause = self._first_pause_s + READ_S * self._tape.identity.world_size
        doubts_at = time.monotonic() + DOUBT_S
        is_last_read = False
        while not is_last_read:
            is_last_read = self._stopping.wait(pause)
            pause = min(pause * 1.5, max(LONGEST_PAUSE_S, first_pause_s))
            has_met_rank_0 = self._has_met_rank_0()  # checked before reading the id, which rank 0 must then have set
            run_id, answers = self._read(store)
            if run_id and (answers >= question or has_met_rank_0):
                self._settle(run_id, RunIdState.AGREED)
                self._meet(store, run_id)
                return
            if run_id and (is_last_read or time.monotonic() >= doubts_at):
                self._tape.set_run_id(run_id, RunIdState.PROVISIONAL)
                self._meet(store, run_id)

    # --- all ------------------------------------------------------------------------------------------------------

    @property
    def _questions(self) -> str:
        """The key under which questions are counted."""
        return f"{self._key}/questions"

    def _read(self, store: Any) -> _Published:
        """Read what rank 0 has published; `get` alone would block until the store's own timeout."""
        if not store.check([self._key]):
            return _Published(0, 0)
        run_id, _, answers = store.get(self._key).decode().partition("/")
        return _Published(int(run_id, 16), int(answers))

    def _meet(self, store: Any, run_id: int) -> None:
        """Let the nodes' agents discover each other; otherwise each of them judges from its own ranks only.

        Runs on a separate thread because a node may join minutes later. Under an id left over from an earlier attempt
        there is nothing to find, and the agents' own rules keep its leftovers out of their verdicts.
        """
        before, self._met = self._met, run_id
        if self._discovery is None or run_id == before or self._stopping.is_set():
            return
        with contextlib.suppress(RuntimeError):  # no thread can be started, for example at interpreter exit
            self._begin("otel-torchdist-peers", self._hold, self._discovery, store, run_id)

    def _hold(self, discovery: PeerDiscovery, store: Any, run_id: int) -> None:
        try:
            discovery.hold(store, run_id)
        except Exception as error:
            if not self._stopping.is_set():
                _logger.warning("the agents of this job's nodes cannot find each other: %s", error)

    def _settle(self, run_id: int, state: RunIdState) -> None:
        with self._settling:
            if not self._is_settled:
                self._is_settled = True
                self._tape.set_run_id(run_id, state)
