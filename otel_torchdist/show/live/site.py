"""The live page of one reader: its feed, its document as bytes, and its files, as the settings say."""

from __future__ import annotations

import os
import secrets
import socket
import threading
from collections.abc import Mapping
from importlib.resources import files
from typing import Final

import msgspec

from otel_torchdist.config import Config, PageAccess
from otel_torchdist.model.naming import plain_rank
from otel_torchdist.show.live.document import chosen_lanes, document_of, no_document
from otel_torchdist.show.live.feed import LiveFeed
from otel_torchdist.show.live.live_snapshot import AgentFacts, LiveSnapshot
from otel_torchdist.show.pages.page import Page, html_of, policy_of
from otel_torchdist.show.serving.scrape_target import reachable
from otel_torchdist.show.serving.site import Site

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


SCRIPTS: Final = ("banner.js", "live_tables.js", "minute.js", "overview.js", "live.js")
"""What only this page has; they follow the scripts that all pages share."""


def live_feed(config: Config) -> LiveFeed | None:
    """Return what a reader publishes to; None if there is no page."""
    if config.page is PageAccess.OFF:
        return None
    host, user = socket.gethostname(), os.geteuid()
    return LiveFeed(
        AgentFacts(secrets.token_hex(8), host, user, config.stall_timeout, config.trace_url, config.docs_url or "docs")
    )


def live_site(config: Config, feed: LiveFeed | None) -> Site | None:
    """Return the page beside `/metrics`; None if there is none."""
    if feed is None:
        return None
    page = Page("otel_torchdist", _own("body.html"), tuple(map(_own, SCRIPTS)), style=_own("live.css"), connects=True)
    site = Site(config.page, LivePage(feed), html_of(page).encode(), f"{policy_of(page)}; frame-ancestors 'none'")
    feed.when_unwatched(site.packed.forget)
    return site


def page_address(config: Config, port: int) -> str:
    """Return where the page is served; '' if there is none. On another node, `localhost` is that node's own."""
    if config.page is PageAccess.OFF:
        return ""
    host = reachable(config.prometheus_host) if config.page is PageAccess.ON else "localhost"
    return f"http://{host}:{port}/"


def _own(name: str) -> str:
    return (files("otel_torchdist.show.live") / "assets" / name).read_text(encoding="utf-8")
