"""Requests JSON over HTTP from the servers' APIs."""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Any, Final

TIMEOUT_S: Final = 20.0

# Ignores the proxies in the environment, because the servers are on this machine.
_opener: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class ApiError(Exception):
    """A server does not answer, or answers with an error.

    Attributes:
        status: HTTP status of the answer; None without an answer.
    """

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


def answers(url: str) -> bool:
    """Return whether a server answers with status 200."""
    try:
        with _opener.open(url, timeout=2) as answer:
            return answer.status == 200
    except (OSError, ValueError):
        return False


def get_json(url: str, parameters: Mapping[str, str] | None = None) -> Any:
    """Return a server's answer.

    Raises:
        ApiError: The server does not answer, or answers with an error or without JSON.
    """
    full = f"{url}?{urllib.parse.urlencode(parameters)}" if parameters else url
    try:
        with _opener.open(full, timeout=TIMEOUT_S) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        text = error.read(2000).decode(errors="replace")
        raise ApiError(f"{full}: {error.code} {text}", error.code) from None
    except (OSError, ValueError) as error:
        raise ApiError(f"{full}: {error}") from None
