"""Queries one other agent, within a deadline, and accepts only answers that the agent has signed."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
import time
from dataclasses import dataclass
from typing import Any, Final

from otel_torchdist.errors import TorchDistError
from otel_torchdist.exchange.envelope import SIGNATURE_HEADER, Envelope, is_signed
from otel_torchdist.job.peers import Peer

MAX_ANSWER: Final = 8 << 20
OK: Final = 200
WRONG_INSTANCE: Final = 409
"""The request was meant for an agent that is gone; the answer names its successor."""
_PIECE: Final = 1 << 16


class NoAnswerError(TorchDistError):
    """An agent did not answer, or not correctly; the message gives the reason."""


@dataclass(frozen=True, slots=True)
class Answered:
    """An answer.

    Attributes:
        body: Signed by the other agent.
        asked_ns: Monotonic time at which the request left.
        heard_ns: Monotonic time at which the answer was complete.
    """

    body: bytes
    asked_ns: int
    heard_ns: int


class Line:
    """Sends requests to one other agent, one at a time: their numbers must arrive in order."""

    def __init__(self, peer: Peer, run: int, token: bytes, own_instance: str) -> None:
        self.peer = peer
        self._run, self._token, self._own_instance = run, token, own_instance
        self._their_instance = ""
        self._number = 0
        self._lock = threading.Lock()

    def ask(self, path: str, body: bytes, timeout_s: float, most: int = MAX_ANSWER) -> Answered:
        """Send a request, a second time if the agent has been restarted since the last one.

        Args:
            path: The path.
            body: The body.
            timeout_s: For everything.
            most: Bytes that the answer may have.

        Raises:
            NoAnswerError: No answer came in time, or none that was signed.
        """
        deadline = time.monotonic() + timeout_s
        if not self._lock.acquire(timeout=timeout_s):
            raise NoAnswerError("an earlier request has not been answered yet")
        try:
            status, answered = self._ask_once(path, body, deadline, most)
            if status == WRONG_INSTANCE:
                self._their_instance = answered.body.decode("ascii", "replace")
                status, answered = self._ask_once(path, body, deadline, most)
            if status != OK:
                raise NoAnswerError(f"it answers with status {status}")
            return answered
        finally:
            self._lock.release()

    def _ask_once(self, path: str, body: bytes, deadline: float, most: int) -> tuple[int, Answered]:
        self._number += 1
        envelope = Envelope(self._run, self._own_instance, self._their_instance, self._number)
        asked_ns = time.monotonic_ns()
        try:
            with contextlib.closing(_Connection(self.peer, deadline)) as connection:
                connection.request("POST", path, body, envelope.headers(self._token, path, body))
                with connection.getresponse() as response:
                    answer = _read(response, most)
        except (OSError, http.client.HTTPException, ValueError) as error:  # ValueError: not a valid host name
            raise NoAnswerError(str(error) or type(error).__name__) from error
        expected = envelope.sign_answer(self._token, response.status, answer)
        if not is_signed(response.headers.get(SIGNATURE_HEADER, ""), expected):
            raise NoAnswerError(
                f"the process that answers there (status {response.status}) does not have the run's token"
            )
        return response.status, Answered(answer, asked_ns, time.monotonic_ns())


class _Connection(http.client.HTTPConnection):
    """A connection with one deadline for everything."""

    def __init__(self, peer: Peer, deadline: float) -> None:
        super().__init__(peer.host, peer.port, timeout=_left(deadline))
        self._deadline = deadline

    def connect(self) -> None:
        super().connect()
        self.sock.settimeout(_left(self._deadline))
        self.sock = _Socket(self.sock, self._deadline)


class _Socket(socket.socket):
    """A socket that waits for data until its deadline; the timeout of a plain socket starts anew at every read."""

    def __init__(self, connected: socket.socket, deadline: float) -> None:
        timeout_s = connected.gettimeout()
        super().__init__(connected.family, connected.type, connected.proto, connected.detach())
        self.settimeout(timeout_s)
        self._deadline = deadline

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        self.settimeout(_left(self._deadline))
        return super().recv_into(buffer, nbytes, flags)


def _read(response: http.client.HTTPResponse, most: int) -> bytes:
    """Read the body, up to `most` bytes."""
    pieces: list[bytes] = []
    size = 0
    while piece := response.read1(_PIECE):
        pieces.append(piece)
        size += len(piece)
        if size > most:
            raise NoAnswerError(f"its answer is longer than {most} bytes")
    return b"".join(pieces)


def _left(deadline: float) -> float:
    left_s = deadline - time.monotonic()
    if left_s <= 0:
        raise NoAnswerError("no answer in time")
    return left_s
