"""Finds the live page of a run. Its agent serves the page and `/metrics` at the address published for Prometheus."""

from __future__ import annotations

import http.client
from pathlib import Path
from typing import Final

from otel_torchdist.show.serving.scrape_target import FOLDER, ScrapeTarget

TIMEOUT_S: Final = 5.0


def live_page(tapes: Path, run: str) -> str | None:
    """Return the address of a run's live page; None if no agent on this machine serves one.

    Args:
        tapes: Base directory of the tapes.
        run: Value of the label `run` in metrics.
    """
    of_run = (target for target in _targets(tapes) if f'run="{run}"'.encode() in _fetched(target, "/metrics"))
    return next(filter(None, map(_page_at, of_run)), None)


def address_of(tapes: Path) -> str | None:
    """Return the address of any job's live page; None if there is none yet."""
    return next(filter(None, map(_page_at, _targets(tapes))), None)


def _targets(tapes: Path) -> list[str]:
    targets = (ScrapeTarget(tapes / path.stem).last_target() for path in sorted((tapes / FOLDER).glob("*.json")))
    return [target for target in targets if target]


def _page_at(target: str) -> str | None:
    return f"http://{target}/" if _fetched(target, "/").startswith(b"<!DOCTYPE html>") else None


def _fetched(target: str, path: str) -> bytes:
    connection = http.client.HTTPConnection(target, timeout=TIMEOUT_S)
    try:
        connection.request("GET", path)
        return connection.getresponse().read()
    except (OSError, http.client.HTTPException):
        return b""
    finally:
        connection.close()
