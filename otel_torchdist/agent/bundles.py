"""Decides when an agent writes bundles, and writes them on a thread of its own: a file system may be slow, or hang."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Final

from otel_torchdist import guard
from otel_torchdist.agent.actions.stalled_run import stalled_run
from otel_torchdist.agent.reading.reader import Reader
from otel_torchdist.config import Config
from otel_torchdist.environment_variables import OTEL_PYTHON_TORCHDIST_BUNDLE_BYTES, OTEL_PYTHON_TORCHDIST_BUNDLES
from otel_torchdist.judge.stall.events import Event, OngoingStall, Ruling, RunSeen, VerdictGiven
from otel_torchdist.judge.stall.reporting.attributes import ruling_of
from otel_torchdist.model.snapshot import RankView
from otel_torchdist.node.job.agent_notes import bundled_ns, concluded_ns, note_bundled
from otel_torchdist.node.job.bundled import FORMAT, BundleManifest, BundleReason
from otel_torchdist.node.job.runs.lives import run_of
from otel_torchdist.sources.bundles.content import BundleContent
from otel_torchdist.sources.bundles.folder import BundleFolder, BundleTooLargeError
from otel_torchdist.system.files.others import reason
from otel_torchdist.tape.reading.reader import TapeReader

MAX_WAITING: Final = 16
"""Upper bound on bundles that wait for the thread, if the file system hangs."""

_logger = logging.getLogger("otel_torchdist")


class BundleKeeper:
    """Writes a bundle of each job on a stall, on a crash, when all ranks have ended, and when the agent ends."""

    def __init__(self, folder: BundleFolder | None) -> None:
        """Write nothing yet; never write anything without a folder."""
        self._thread = BundleThread(folder) if folder is not None else None
        self._incidents: set[int] = set()
        self._ends: dict[Path, int] = {}
        self._has_left = False

    def update(self, reader: Reader, tapes: Collection[TapeReader]) -> None:
        """Request the bundles that are due after a turn of the reader, without waiting for them.

        Args:
            reader: The reader.
            tapes: Tapes of jobs that belong to this process's user.
        """
        if self._thread is None:
            return
        seen = reader.watch.seen
        for ruling, nonces in _rulings(reader.incidents, reader.watch.ongoing):
            trace_id = ruling.incident.trace_id
            if trace_id not in self._incidents:
                self._incidents.add(trace_id)
                concerned = [tape for tape in tapes if tape.identity.nonce in nonces]
                self._request(BundleReason.VERDICT, concerned, seen, ruling)
        for directory, local in _by_directory(tapes).items():
            ended_ns = concluded_ns(directory)
            if ended_ns > self._ends.get(directory, 0):
                self._ends[directory] = ended_ns
                if ended_ns > bundled_ns(directory):  # else an earlier agent has written it
                    self._request(BundleReason.END, local, seen)

    def leave(self, reader: Reader, directories: Collection[Path]) -> None:
        """Request the last bundles, because this agent is about to end. Only the first call counts.

        Args:
            reader: The reader.
            directories: Job directories that belong to this process's user.
        """
        if self._has_left or self._thread is None:
            return
        self._has_left = True
        with guard.guarded("the last bundles of evidence"):
            own = [tape for tape in reader.tapes if tape.path.parent in directories]
            for directory, local in _by_directory(own).items():
                created_ns = max(tape.identity.monotonic_ns for tape in local)
                if any(tape.is_alive() for tape in local):
                    self._request(BundleReason.AGENT_ENDS, local, reader.watch.seen)
                elif created_ns > max(self._ends.get(directory, 0), bundled_ns(directory)):
                    self._ends[directory] = created_ns
                    self._request(BundleReason.END, local, reader.watch.seen)

    def close(self, timeout_s: float) -> None:
        """Wait until the requested bundles are written."""
        if self._thread is not None:
            self._thread.close(timeout_s)

    def _request(
        self,
        why: BundleReason,
        tapes: list[TapeReader],
        seen: Collection[RunSeen],
        ruling: Ruling | None = None,
    ) -> None:
        if self._thread is None or len({tape.path.parent for tape in tapes}) != 1:
            return  # no rank is on this node, or ranks of several jobs have no run id yet
        newest = max(tapes, key=lambda tape: tape.identity.monotonic_ns)
        run = ruling.incident.run if ruling is not None else run_of(newest)
        manifest = BundleManifest(
            FORMAT,
            f"{run:032x}",
            newest.identity.host,
            why.value,
            verdict=ruling.verdict if ruling is not None else "",
            trace_id=f"{ruling.incident.trace_id:032x}" if ruling is not None else "",
            torch=newest.identity.torch,
        )
        nonces = {tape.identity.nonce for tape in tapes}
        views: dict[int, RankView] = {
            view.nonce: view for each in seen for view in each.world.ranks.values() if view.nonce in nonces
        }
        verdict = stalled_run(ruling.incident, ruling.attributes, ruling.text, tapes).to_json() if ruling else ""
        self._thread.put(BundleContent(newest.path.parent, manifest, verdict, views), newest.identity.monotonic_ns)


def keeper_of(config: Config) -> BundleKeeper:
    """Return a keeper that writes into the configured directory, if there is one."""
    return BundleKeeper(BundleFolder(config.bundles, config.bundle_bytes) if config.bundles is not None else None)


def _rulings(events: Iterable[Event], ongoing: Iterable[OngoingStall]) -> Iterator[tuple[Ruling, frozenset[int]]]:
    """Yield the verdicts of this turn, and the ranks on this node that they are about."""
    for stall in ongoing:
        yield stall.ruling, stall.nonces
    for event in events:
        if isinstance(event, VerdictGiven):
            local = frozenset(view.nonce for view in event.world.ranks.values() if not view.is_remote)
            yield ruling_of(event.verdict, event.incident, event.epoch, event.world.taken_ns), local


def _by_directory(tapes: Iterable[TapeReader]) -> dict[Path, list[TapeReader]]:
    directories: dict[Path, list[TapeReader]] = {}
    for tape in tapes:
        directories.setdefault(tape.path.parent, []).append(tape)
    return directories


# --- the thread -------------------------------------------------------------------------------------------------------


class BundleThread:
    """Writes bundles one after the other."""

    def __init__(self, folder: BundleFolder) -> None:
        """Set up; the thread starts with the first bundle."""
        self._folder = folder
        self._changed = threading.Condition()
        self._waiting: deque[tuple[BundleContent, int]] = deque()
        self._is_closing = False
        self._has_failed = False
        self._thread: threading.Thread | None = None

    def put(self, evidence: BundleContent, created_ns: int) -> None:
        """Queue a bundle.

        Args:
            evidence: Its content.
            created_ns: Monotonic time at which the newest tape was created.
        """
        with self._changed:
            if len(self._waiting) == MAX_WAITING:
                return  # a warning about the bundle that hangs has been logged
            self._waiting.append((evidence, created_ns))
            self._changed.notify_all()
            if self._thread is None:
                with contextlib.suppress(RuntimeError):  # no thread starts while the process ends: `close` writes
                    thread = threading.Thread(target=self._run, name="otel-torchdist-bundles", daemon=True)
                    thread.start()
                    self._thread = thread

    def close(self, timeout_s: float) -> None:
        """Write the queued bundles and stop; warn if they are not written in time."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        if self._thread is None:
            self._run()
            return
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            _logger.warning(
                "%s: the last bundle of evidence was not written within %g s: it is left out",
                OTEL_PYTHON_TORCHDIST_BUNDLES, timeout_s,
            )  # fmt: skip

    def _run(self) -> None:
        while (next_one := self._next()) is not None:
            with guard.guarded("a bundle of evidence"):
                self._write(*next_one)

    def _next(self) -> tuple[BundleContent, int] | None:
        with self._changed:
            while not self._waiting and not self._is_closing:
                self._changed.wait()
            return self._waiting.popleft() if self._waiting else None

    def _write(self, evidence: BundleContent, created_ns: int) -> None:
        began = time.monotonic()
        try:
            if not self._folder.has_incident(evidence):  # else an earlier agent has written it
                path = self._folder.write(evidence)
                _logger.info("wrote %s in %.1f s", path, time.monotonic() - began)
            self._has_failed = False
        except BundleTooLargeError as error:
            self._warn("%s: no bundle of evidence: %s", OTEL_PYTHON_TORCHDIST_BUNDLE_BYTES, error)
        except OSError as error:
            self._warn("%s: no bundle of evidence could be written: %s", OTEL_PYTHON_TORCHDIST_BUNDLES, reason(error))
        if evidence.manifest.reason == BundleReason.END.value:
            note_bundled(evidence.directory, created_ns)

    def _warn(self, text: str, *values: object) -> None:
        """Log a failure once, until a bundle is written again."""
        if not self._has_failed:
            _logger.warning(text, *values)
        self._has_failed = True
