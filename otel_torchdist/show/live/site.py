"""The live page of one reader: its feed, its document as bytes, and its files, according to the settings."""

from __future__ import annotations

import os
import secrets
import socket
import threading
from collections.abc import Mapping
from typing import Final

import msgspec

from otel_torchdist.config import Config, PageAccess
from otel_torchdist.model.text import plain_rank
from otel_torchdist.show.live.document import chosen_lanes, document_of, no_document
from otel_torchdist.show.live.feed import LiveFeed
from otel_torchdist.show.live.live_snapshot import AgentFacts, LiveSnapshot
from otel_torchdist.show.pages.page import Page, asset, html_of, policy_of
from otel_torchdist.show.serving.scrape_target import reachable
from otel_torchdist.show.serving.site import Site

MAX_KEPT: Final = 32
"""Upper bound on the cached documents of one snapshot."""

_encode: Final = msgspec.json.Encoder(enc_hook=plain_rank).encode


class LivePage:
    """Builds documents from snapshots, one at a time, and caches them."""

    def __init__(self, feed: LiveFeed) -> None:
        """Build documents from the snapshots of `feed`."""
        self._feed = feed
        feed.when_unwatched(self._forget)
        self._making = threading.Lock()
        self._snapshot: LiveSnapshot | None = None
        self._cache: dict[tuple[int | None, str, tuple[int, ...]], bytes] = {}

    def document(self, query: Mapping[str, str], user: int | None) -> bytes:
        """Return the document for a visitor as JSON.

        Args:
            query: `run` is the key of the chosen run; `ranks` are the ranks whose operations are shown in lanes.
            user: Id of the user whose runs may be seen; None for all.
        """
        snapshot = self._feed.visit()
        if snapshot is None:
            return _encode(no_document(self._feed.facts))
        choice = user, query.get("run", ""), chosen_lanes(query.get("ranks", ""))
        with self._making:
            if snapshot is not self._snapshot:
                self._snapshot, self._cache = snapshot, {}
            if len(self._cache) >= MAX_KEPT:
                self._cache.clear()
            if choice not in self._cache:
                self._cache[choice] = _encode(document_of(snapshot, self._feed.facts, *choice))
            return self._cache[choice]

    def _forget(self) -> None:
        """Drop the cache once there are no visitors."""
        with self._making:
            self._snapshot, self._cache = None, {}


SCRIPTS: Final = ("banner.js", "live_tables.js", "minute.js", "overview.js", "live.js")
"""Scripts of this page only. They follow the scripts shared by all pages."""


def live_feed(config: Config) -> LiveFeed | None:
    """Return the feed that a reader publishes to; None if the page is off."""
    if config.page is PageAccess.OFF:
        return None
    host, user = socket.gethostname(), os.geteuid()
    return LiveFeed(
        AgentFacts(secrets.token_hex(8), host, user, config.stall_timeout, config.trace_url, config.docs_url or "docs")
    )


def live_site(config: Config, feed: LiveFeed | None) -> Site | None:
    """Return the page to serve beside `/metrics`; None if the page is off."""
    if feed is None:
        return None
    page = Page(
        "otel_torchdist",
        asset("live", "body.html"),
        tuple(asset("live", name) for name in SCRIPTS),
        style=asset("live", "live.css"),
        connects=True,
    )
    site = Site(config.page, LivePage(feed), html_of(page).encode(), f"{policy_of(page)}; frame-ancestors 'none'")
    feed.when_unwatched(site.packed.forget)
    return site


def page_address(config: Config, port: int) -> str:
    """Return the address of the page; '' if it is off. `localhost` means the agent's node."""
    if config.page is PageAccess.OFF:
        return ""
    host = reachable(config.prometheus_host) if config.page is PageAccess.ON else "localhost"
    return f"http://{host}:{port}/"
