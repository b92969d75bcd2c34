"""The document of the live page as bytes, shared by all visitors who want the same."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Final

import msgspec

from otel_torchdist.live.document import chosen_lanes, document_of, no_document
from otel_torchdist.live.feed import LiveFeed
from otel_torchdist.live.model import LiveSnapshot
from otel_torchdist.naming import plain_rank

MAX_KEPT: Final = 32
"""Documents of one snapshot that are kept; beyond that they are made again."""

_encode: Final = msgspec.json.Encoder(enc_hook=plain_rank).encode


class LivePage:
    """Makes documents of snapshots, one at a time, and each one once."""

    def __init__(self, feed: LiveFeed) -> None:
        """Make documents of what `feed` publishes."""
        self._feed = feed
        feed.when_unwatched(self._forget)
        self._making = threading.Lock()
        self._snapshot: LiveSnapshot | None = None
        self._made: dict[tuple[int | None, str, tuple[int, ...]], bytes] = {}

    def document(self, query: Mapping[str, str], user: int | None) -> bytes:
        """Return the document for a visitor as JSON.

        Args:
            query: `run`, the key of the chosen run, and `ranks`, those whose operations are shown one by one.
            user: Id of the user whose runs may be seen; None for all.
        """
        snapshot = self._feed.visit()
        if snapshot is None:
            return _encode(no_document(self._feed.facts))
        wanted = user, query.get("run", ""), chosen_lanes(query.get("ranks", ""))
        with self._making:
            if snapshot is not self._snapshot:
                self._snapshot, self._made = snapshot, {}
            if len(self._made) >= MAX_KEPT:
                self._made.clear()
            if wanted not in self._made:
                self._made[wanted] = _encode(document_of(snapshot, self._feed.facts, *wanted))
            return self._made[wanted]

    def _forget(self) -> None:
        """Drop what is kept for visitors."""
        with self._making:
            self._snapshot, self._made = None, {}
