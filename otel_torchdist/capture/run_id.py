"""One id for the run on all of its ranks, agreed through the job's store, without a collective.

Rank 0 draws it and sets it; the others read it. What a rank reads first may be left over from an attempt before
(torchrun's shared store kept the very same key through restarts), so it is provisional until a collective has
ended that rank 0 cannot have entered before it had set the new one. Then it is read again.
"""

from __future__ import annotations

import itertools
import os
import secrets
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from otel_torchdist.tape.layout import RunIdState

if TYPE_CHECKING:
    from otel_torchdist.capture.recorder import Recorder

SET_DEADLINE_S: Final = 2.0
"""How long rank 0 waits, where it creates the default group anyway, for its `set` to be on its way."""
READ_DEADLINE_S: Final = 60.0
_POLL_S: Final = 0.05
_attempts = itertools.count()
"""Default groups of this process so far: ranks that re-create theirs together agree on it."""


class RunIdAgreement:
    """Agrees on the run id of one recorder. All store calls are made on disposable threads over a cloned store."""

    def __init__(self, recorder: Recorder, store: Any) -> None:
        """Start: rank 0 sets an id, the others begin to look for it."""
        identity = recorder.tape.identity
        self._recorder = recorder
        self._is_first = identity.rank == 0
        self._key = "otel_torchdist/run/{}/{}/{}".format(
            os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), identity.world_size, next(_attempts)
        )
        self._store: Any = store
        self._busy: threading.Thread | None = None
        self.settled = False
        if not self._is_first:
            self._run(self._read, RunIdState.PROVISIONAL)
            return
        run_id = secrets.randbits(128)
        thread = self._run(self._set, run_id)
        thread.join(SET_DEADLINE_S)
        if thread.is_alive():
            self._settle(run_id, RunIdState.UNAGREED)

    def _run(self, target: Any, argument: Any) -> threading.Thread:
        thread = threading.Thread(target=target, args=(argument,), name="otel-torchdist-run-id", daemon=True)
        self._busy = thread
        thread.start()
        return thread

    def _set(self, run_id: int) -> None:
        try:
            store = self._store.clone()
            store.set(self._key, f"{run_id:032x}")
        except (RuntimeError, AttributeError, TypeError):  # fake, MPI and Python stores cannot be cloned
            self._settle(run_id, RunIdState.UNAGREED)
            return
        self._settle(run_id, RunIdState.AGREED)

    def _read(self, state: RunIdState) -> None:
        deadline = time.monotonic() + READ_DEADLINE_S
        try:
            store = self._store.clone()
            while time.monotonic() < deadline:
                # `get` on a missing key blocks until the store's own timeout.
                if store.check([self._key]):
                    self._publish(int(store.get(self._key), 16), state)
                    return
                time.sleep(_POLL_S)
        except (RuntimeError, AttributeError, TypeError, ValueError):
            pass  # it cannot be cloned, it is gone, or somebody else's value lies there
        self._settle(secrets.randbits(128), RunIdState.UNAGREED)

    def synchronized(self) -> None:
        """A collective has ended that every rank had entered: what rank 0 set is there now."""
        if self.settled or self._is_first or (self._busy and self._busy.is_alive()):
            return
        self._run(self._read, RunIdState.AGREED)

    def _publish(self, run_id: int, state: RunIdState) -> None:
        if state is RunIdState.PROVISIONAL:
            self._recorder.tape.set_run_id(run_id, state)
            return
        self._settle(run_id, state)

    def _settle(self, run_id: int, state: RunIdState) -> None:
        if self.settled:
            return
        self.settled = True
        self._recorder.tape.set_run_id(run_id, state)
        self._store = None
