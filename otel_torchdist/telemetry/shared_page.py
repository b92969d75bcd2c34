"""One page for all who ask for it at the same time: a storm of scrapes costs no more than a few."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

App = Callable[..., Iterable[bytes]]
_Headers = tuple[tuple[str, str], ...]

_VARIES_BY: Final = ("REQUEST_METHOD", "PATH_INFO", "QUERY_STRING", "HTTP_ACCEPT", "HTTP_ACCEPT_ENCODING")


@dataclass(frozen=True, slots=True)
class _Page:
    """An answer.

    Attributes:
        request: What was asked for.
        begun: When its making began; it holds for all who had asked by then.
        status: Of HTTP.
        headers: Of HTTP.
        body: The rest.
    """

    request: tuple[str, ...]
    begun: float
    status: str
    headers: _Headers
    body: tuple[bytes, ...]


class SharedPage:
    """A WSGI application in front of another one, which is called by one thread at a time.

    Whoever comes while a page is made waits for the next one, and that one is for all who wait. So an answer is never
    older than its question.
    """

    def __init__(self, app: App) -> None:
        """Answer what `app` answers."""
        self._app = app
        self._making = threading.Lock()
        self._last: _Page | None = None

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., object]) -> Iterable[bytes]:
        """Answer one request."""
        asked = time.monotonic()
        request = tuple(str(environ.get(name, "")) for name in _VARIES_BY)
        with self._making:
            page = self._last
            if page is None or page.request != request or page.begun < asked:
                page = self._last = self._make(environ, request)
        start_response(page.status, list(page.headers))
        return page.body

    def _make(self, environ: dict[str, Any], request: tuple[str, ...]) -> _Page:
        begun = time.monotonic()
        said: list[tuple[str, _Headers]] = []

        def start_response(status: str, headers: list[tuple[str, str]]) -> None:
            said.append((status, tuple(headers)))

        body = tuple(self._app(environ, start_response))
        [(status, headers)] = said
        return _Page(request, begun, status, headers, body)
