"""The live page of one reader: its feed, its document and its files, as the settings say."""

from __future__ import annotations

import os
import secrets
import socket
from importlib.resources import files
from typing import Final

from otel_torchdist.config import Config, PageAccess
from otel_torchdist.live.feed import LiveFeed
from otel_torchdist.live.model import AgentFacts
from otel_torchdist.live.page import LivePage
from otel_torchdist.pages.page import Page, html_of, policy_of
from otel_torchdist.serving.scrape_target import reachable
from otel_torchdist.serving.site import Site

SCRIPTS: Final = ("banner.js", "live_tables.js", "minute.js", "overview.js", "live.js")
"""What only this page has; they follow the scripts that all pages share."""


def live_feed(config: Config) -> LiveFeed | None:
    """Return what a reader publishes to; None if there is no page."""
    if config.page is PageAccess.OFF:
        return None
    host, user = socket.gethostname(), os.geteuid()
    return LiveFeed(AgentFacts(secrets.token_hex(8), host, user, config.stall_timeout, config.trace_url))


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
    return (files("otel_torchdist.live") / "assets" / name).read_text(encoding="utf-8")
