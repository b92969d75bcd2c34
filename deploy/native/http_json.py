"""JSON over HTTP, as the servers' APIs speak it."""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Any, Final

TIMEOUT_S: Final = 20.0


class ApiError(Exception):
    """A server does not answer, or refuses."""


def get_json(url: str, parameters: Mapping[str, str] | None = None) -> Any:
    """What a server answers.

    Raises:
        ApiError: It is not there, answers with an error, or with something else than JSON.
    """
    full = f"{url}?{urllib.parse.urlencode(parameters)}" if parameters else url
    try:
        with urllib.request.urlopen(full, timeout=TIMEOUT_S) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        raise ApiError(f"{full}: {error.code} {error.read(2000).decode(errors='replace')}") from None
    except (OSError, ValueError) as error:
        raise ApiError(f"{full}: {error}") from None
