"""Finds the live page of a run: its agent serves it beside `/metrics`, whose address is published for Prometheus."""

from __future__ import annotations

import http.client
from pathlib import Path
from typing import Final

from otel_torchdist.serving.scrape_target import FOLDER, ScrapeTarget

TIMEOUT_S: Final = 5.0


def live_page(tapes: Path, run: str) -> str | None:
    """The address of a run's live page; None if no agent here serves one for it.

    Args:
        tapes: Base directory of the tapes.
        run: The run as metrics label it.
    """
    for path in sorted((tapes / FOLDER).glob("*.json")):
        target = ScrapeTarget(tapes / path.stem).last_target()
        is_there = target and f'run="{run}"'.encode() in _got(target, "/metrics")
        if is_there and _got(target, "/").startswith(b"<!DOCTYPE html>"):
            return f"http://{target}/"
    return None


def _got(target: str, path: str) -> bytes:
    connection = http.client.HTTPConnection(target, timeout=TIMEOUT_S)
    try:
        connection.request("GET", path)
        return connection.getresponse().read()
    except (OSError, http.client.HTTPException):
        return b""
    finally:
        connection.close()
