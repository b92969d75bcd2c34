"""Finds the live page of a run: its agent serves it beside `/metrics`, whose address is published for Prometheus."""

from __future__ import annotations

import http.client
from pathlib import Path
from typing import Final

from otel_torchdist.show.serving.scrape_target import FOLDER, ScrapeTarget

TIMEOUT_S: Final = 5.0


def live_page(tapes: Path, run: str) -> str | None:
    """The address of a run's live page; None if no agent here serves one for it.

    Args:
        tapes: Base directory of the tapes.
        run: The run as metrics label it.
    """
    of_run = (target for target in _targets(tapes) if f'run="{run}"'.encode() in _got(target, "/metrics"))
    return next(filter(None, map(_page_at, of_run)), None)


def address_of(tapes: Path) -> str | None:
    """The address of the live page of any job; None if there is none yet."""
    return next(filter(None, map(_page_at, _targets(tapes))), None)


def _targets(tapes: Path) -> list[str]:
    found = (ScrapeTarget(tapes / path.stem).last_target() for path in sorted((tapes / FOLDER).glob("*.json")))
    return [target for target in found if target]


def _page_at(target: str) -> str | None:
    return f"http://{target}/" if _got(target, "/").startswith(b"<!DOCTYPE html>") else None


def _got(target: str, path: str) -> bytes:
    connection = http.client.HTTPConnection(target, timeout=TIMEOUT_S)
    try:
        connection.request("GET", path)
        return connection.getresponse().read()
    except (OSError, http.client.HTTPException):
        return b""
    finally:
        connection.close()
