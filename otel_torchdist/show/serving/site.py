"""Serves the live page on the port of `/metrics`, to the visitors that may see it."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol
from urllib.parse import parse_qsl

from otel_torchdist import guard
from otel_torchdist.config import PageAccess
from otel_torchdist.show.serving.http_server import App
from otel_torchdist.show.serving.visitors import is_local, names_this_machine, user_of

PAGE: Final = "/"
DOCUMENT: Final = "/live.json"
METRICS: Final = "/metrics"
MAX_QUERY: Final = 1024
MAX_KEPT: Final = 8
"""Upper bound on the cached compressed bodies."""
SMALL: Final = 512
"""Smaller bodies are not compressed."""
_SECURITY: Final = (
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Referrer-Policy", "no-referrer"),
    ("Cache-Control", "no-store"),
)
_TEXT: Final = "text/plain; charset=utf-8"
HTML: Final = "text/html; charset=utf-8"
_JSON: Final = "application/json"


class PackedBodies:
    """Compresses bodies, one at a time, and caches the latest."""

    def __init__(self) -> None:
        """Create an empty cache."""
        self._packing = threading.Lock()
        self._packed: dict[bytes, bytes] = {}

    def of(self, body: bytes) -> bytes:
        """Return a body compressed."""
        with self._packing:
            if body not in self._packed and len(self._packed) >= MAX_KEPT:
                self._packed.clear()
            if body not in self._packed:
                self._packed[body] = gzip.compress(body, compresslevel=1, mtime=0)
            return self._packed[body]

    def forget(self) -> None:
        """Drop the cache once there are no visitors."""
        with self._packing:
            self._packed.clear()


class LiveDocument(Protocol):
    """Builds the document that the page polls."""

    def document(self, query: Mapping[str, str], user: int | None) -> bytes:
        """Return the document for one visitor, who may see the runs of `user`, or all runs if `user` is None."""
        ...


@dataclass(frozen=True, slots=True)
class Site:
    """The live page beside `/metrics`.

    Attributes:
        access: The users who may see it; not `OFF`.
        live: Builds the document.
        page: The page, which polls the document.
        policy: The page's Content-Security-Policy.
        packed: Cache of compressed bodies.
    """

    access: PageAccess
    live: LiveDocument
    page: bytes
    policy: str
    packed: PackedBodies = field(default_factory=PackedBodies)

    def beside(self, metrics: App) -> App:
        """Return an application that serves the page, and `/metrics` exactly as `metrics` does."""

        def app(environ: dict[str, Any], start_response: Callable[..., object]) -> Iterable[bytes]:
            path = environ.get("PATH_INFO") or "/"
            if path == METRICS or path.startswith(f"{METRICS}/"):
                return metrics(environ, start_response)
            answer = HttpAnswer("500 Internal Server Error", b"The page failed; the agent's log says why.\n")
            with guard.guarded("the live page"):
                answer = self._answer(path, environ)
            return respond(answer, self.policy, self.packed, environ, start_response)

        return app

    def _answer(self, path: str, environ: dict[str, Any]) -> HttpAnswer:
        if path not in (PAGE, DOCUMENT):
            return HttpAnswer("404 Not Found", b"Not found. Try /, /docs/verdicts or /metrics.\n")
        user = self._user(environ)
        if isinstance(user, HttpAnswer):
            return user
        if environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
            return READ_ONLY
        if path == PAGE:
            return HttpAnswer("200 OK", self.page, HTML)
        query = dict(parse_qsl(environ.get("QUERY_STRING", "")[:MAX_QUERY]))
        return HttpAnswer("200 OK", self.live.document(query, user), _JSON)

    def _user(self, environ: dict[str, Any]) -> int | HttpAnswer | None:
        """Return the id of the user whose runs a visitor may see, None for all, or a response that refuses access."""
        if self.access is not PageAccess.LOOPBACK:
            return None
        if not is_local(environ.get("REMOTE_ADDR", "")):
            return HttpAnswer("403 Forbidden", _ELSEWHERE)
        if not names_this_machine(environ.get("HTTP_HOST", "")):
            return HttpAnswer("403 Forbidden", _OTHER_NAME)
        user = user_of(environ)
        if user is None:
            return HttpAnswer("403 Forbidden", _UNKNOWN_USER)
        return user or None


_ELSEWHERE: Final = (
    b"The live page is served to users of this machine only: open it through `ssh -L 9464:localhost:9464`, or set\n"
    b"OTEL_PYTHON_TORCHDIST_PAGE=on for the job. /metrics is served as always.\n"
)
_OTHER_NAME: Final = (
    b"The live page is served under the name localhost only; set OTEL_PYTHON_TORCHDIST_PAGE=on to serve it under any.\n"
)
_UNKNOWN_USER: Final = (
    b"The live page shows users of this machine their own jobs, and the kernel did not show whose process connected.\n"
    b"Set OTEL_PYTHON_TORCHDIST_PAGE=on to show them to everyone who reaches this port.\n"
)


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """A response, without the headers common to all responses."""

    status: str
    body: bytes
    content_type: str = _TEXT
    headers: tuple[tuple[str, str], ...] = ()


READ_ONLY: Final = HttpAnswer(
    "405 Method Not Allowed", b"Only GET and HEAD are allowed.\n", headers=(("Allow", "GET, HEAD"),)
)
"""The response to a request that would change something."""


def respond(
    answer: HttpAnswer,
    policy: str,
    packed: PackedBodies,
    environ: dict[str, Any],
    start_response: Callable[..., object],
) -> Iterable[bytes]:
    """Send an answer with its Content-Security-Policy, compressed if the client accepts that."""
    body = answer.body
    headers = [("Content-Type", answer.content_type), ("Content-Security-Policy", policy), *_SECURITY]
    headers += answer.headers
    if len(body) > SMALL and "gzip" in environ.get("HTTP_ACCEPT_ENCODING", ""):
        body = packed.of(body)
        headers += [("Content-Encoding", "gzip"), ("Vary", "Accept-Encoding")]
    headers.append(("Content-Length", str(len(body))))
    start_response(answer.status, headers)
    return [b"" if environ["REQUEST_METHOD"] == "HEAD" else body]
