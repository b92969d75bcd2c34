"""Answers the requests of other agents. Without the token of a run, a client learns nothing about it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol

from otel_torchdist import guard
from otel_torchdist.exchange.client import (
    FROM_HEADER,
    NUMBER_HEADER,
    OK,
    RUN_HEADER,
    SIGNATURE_HEADER,
    TO_HEADER,
    WRONG_INSTANCE,
    Envelope,
    Numbers,
    envelope_from,
    is_signed,
)
from otel_torchdist.exchange.wire import WireError

MAX_QUESTION: Final = 1 << 20
_HEADERS: Final = (RUN_HEADER, FROM_HEADER, TO_HEADER, NUMBER_HEADER, SIGNATURE_HEADER)
_REASONS: Final = {
    OK: "OK",
    400: "Bad Request",
    403: "Forbidden",
    404: "Not Found",
    WRONG_INSTANCE: "Conflict",
    411: "Length Required",
    413: "Content Too Large",
    500: "Internal Server Error",
}

_logger = logging.getLogger("otel_torchdist")


class Respondent(Protocol):
    """Answers for one run."""

    @property
    def token(self) -> bytes:
        """Proves that the caller belongs to the run."""
        ...

    def respond(self, path: str, body: bytes) -> bytes | None:
        """The answer; None if there is no such path.

        Raises:
            WireError: The body is not a valid question.
        """
        ...


class ExchangeApp:
    """A WSGI application for `POST /v1/…`."""

    def __init__(self, instance: str) -> None:
        """Answer requests that are addressed to this agent's `instance`, for no run yet."""
        self._instance = instance
        self._runs: dict[int, Respondent] = {}
        self._numbers = Numbers()
        self._lock = threading.Lock()

    def add(self, run: int, respondent: Respondent) -> None:
        """Answer for one more run."""
        self._runs[run] = respondent

    def drop(self, run: int) -> None:
        """Stop answering for a run."""
        self._runs.pop(run, None)

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., object]) -> Iterable[bytes]:
        """Answer one request."""
        status, body, signature = 500, b"", ""
        with guard.guarded("an answer to another agent"):
            status, body, signature = self._answer(environ)
        headers = [("Content-Type", "application/octet-stream"), ("Content-Length", str(len(body)))]
        if signature:
            headers.append((SIGNATURE_HEADER, signature))
        start_response(f"{status} {_REASONS[status]}", headers)
        return [body]

    def _answer(self, environ: dict[str, Any]) -> tuple[int, bytes, str]:
        if environ["REQUEST_METHOD"] != "POST":
            return 404, b"", ""
        length = environ.get("CONTENT_LENGTH") or ""
        if not length.isdecimal():
            return 411, b"", ""
        if len(length) > len(str(MAX_QUESTION)) or int(length) > MAX_QUESTION:
            return 413, b"", ""
        headers = {name: environ.get("HTTP_" + name.upper().replace("-", "_"), "") for name in _HEADERS}
        envelope = envelope_from(headers)
        respondent = self._runs.get(envelope.run) if envelope is not None else None
        if envelope is None or respondent is None:
            return 403, b"", ""
        path, body = environ["PATH_INFO"], environ["wsgi.input"].read(int(length))
        if not is_signed(headers[SIGNATURE_HEADER], envelope.sign_request(respondent.token, path, body)):
            return 403, b"", ""
        status, answer = self._answer_signed(respondent, envelope, path, body)
        return status, answer, envelope.sign_answer(respondent.token, status, answer)

    def _answer_signed(self, respondent: Respondent, envelope: Envelope, path: str, body: bytes) -> tuple[int, bytes]:
        if envelope.receiver != self._instance:
            return WRONG_INSTANCE, self._instance.encode()
        with self._lock:
            is_new = self._numbers.is_new(envelope)
        if not is_new:
            return 403, b""
        try:
            answer = respondent.respond(path, body)
        except WireError as error:
            _logger.debug("another agent has sent an invalid request: %s", error)
            return 400, b""
        return (404, b"") if answer is None else (OK, answer)
