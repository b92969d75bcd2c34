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
from otel_torchdist.serving.scrape_target import reachable
from otel_torchdist.serving.site import Asset, Site

_TYPES: Final = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
SHARED: Final = ("look.css", "dom.js", "theme.js", "units.js")
"""Files that the live page has in common with the report."""
OWN: Final = ("live.css", "icon.svg", "live.js", "banner.js", "overview.js", "minute.js", "tables.js")


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
    return Site(config.page, LivePage(feed), _assets())


def page_address(config: Config, port: int) -> str:
    """Return where the page is served; '' if there is none. On another node, `localhost` is that node's own."""
    if config.page is PageAccess.OFF:
        return ""
    host = reachable(config.prometheus_host) if config.page is PageAccess.ON else "localhost"
    return f"http://{host}:{port}/"


def _assets() -> dict[str, Asset]:
    """Return the files by their path on the server."""
    shared, own = files("otel_torchdist.pages") / "assets", files("otel_torchdist.live") / "assets"
    found = {f"/page/{name}": Asset(_type_of(name), (shared / name).read_bytes()) for name in SHARED}
    found |= {f"/page/{name}": Asset(_type_of(name), (own / name).read_bytes()) for name in OWN}
    return {"/": Asset(_TYPES["html"], (own / "live.html").read_bytes()), **found}


def _type_of(name: str) -> str:
    return _TYPES[name.rpartition(".")[2]]
