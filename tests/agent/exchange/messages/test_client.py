"""What the asking side has to put up with, and never longer than until its deadline."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable

import pytest

from otel_torchdist.agent.exchange.client import MAX_ANSWER, NoAnswerError, PeerClient, new_instance
from otel_torchdist.node.job.peers import Peer
from tests.agent.exchange.echo_agent import PATH, RUN, TOKEN
from tests.agent.exchange.listening import HOST, peer_at, stranger

DEADLINE_S = 0.3
SLACK_S = 0.2
"""The time that a loaded machine may need to notice a deadline."""


def answering(answer: bytes) -> Callable[[socket.socket], None]:
    """Receive a question, send an answer, and close."""

    def behave(connection: socket.socket) -> None:
        connection.recv(1 << 16)
        connection.sendall(answer)

    return behave


def silent(connection: socket.socket) -> None:
    """Receive everything, and send nothing."""
    while connection.recv(1 << 16):
        pass


def dripping(start: bytes, drop: bytes) -> Callable[[socket.socket], None]:
    """Send a little again and again, so that no single wait is long."""

    def behave(connection: socket.socket) -> None:
        connection.recv(1 << 16)
        connection.sendall(start)
        while True:
            connection.sendall(drop)
            time.sleep(0.02)

    return behave


def stalling(start: bytes, after_s: float) -> Callable[[socket.socket], None]:
    """Send the first bytes late, and no more."""

    def behave(connection: socket.socket) -> None:
        connection.recv(1 << 16)
        time.sleep(after_s)
        connection.sendall(start)
        silent(connection)

    return behave


def endless(connection: socket.socket) -> None:
    """Send an endless answer, as fast as it is taken."""
    connection.recv(1 << 16)
    connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n")
    while True:
        connection.sendall(b"x" * (1 << 16))


UNSIGNED = b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nhi"
STRANGERS: dict[str, Callable[[socket.socket], None]] = {
    "garbage": answering(b"\x00\x16\x03 nonsense\r\n\r\n" * 100),
    "nothing": answering(b""),
    "half a head": answering(b"HTTP/1.0 200 OK\r\nContent-"),
    "head without end": dripping(b"HTTP/1.0 200 OK\r\n", b"X-Much: more\r\n"),
    "status without end": dripping(b"HTTP/1.0 200 ", b"x"),
    "status line by bytes": dripping(b"", b"H"),
    "for ever 100": dripping(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "unsigned": answering(UNSIGNED),
    "wrong signature": answering(UNSIGNED.replace(b"\r\n\r\n", b"\r\nX-Torchdist-Signature: \xff\r\n\r\n")),
    "less than it says": answering(UNSIGNED.replace(b"2", b"9")),
    "length that is none": answering(UNSIGNED.replace(b"2", b"-1")),
    "wrong chunks": answering(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"),
    "moved elsewhere": answering(b"HTTP/1.0 302 Found\r\nLocation: http://127.0.0.1:1/\r\n\r\n"),
    "silent": silent,
    "body by bytes": dripping(b"HTTP/1.0 200 OK\r\n\r\n", b"x"),
    "body by bytes, and its length": dripping(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n", b"x"),
    "body by chunks": dripping(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
    "late, then silent": stalling(b"HTTP/1.0 200 OK\r\n\r\nx", DEADLINE_S * 0.9),
}


def soonest_s(port: int, body: bytes) -> float:
    """How long an unanswered question takes; other load may slow the machine down meanwhile, but not often."""
    took_s: list[float] = []
    while len(took_s) < 5 and min(took_s, default=1e9) >= DEADLINE_S + SLACK_S:
        began = time.monotonic()
        with pytest.raises(NoAnswerError):
            PeerClient(peer_at(port), RUN, TOKEN, new_instance()).ask(PATH, body, DEADLINE_S)
        took_s.append(time.monotonic() - began)
    return min(took_s)


@pytest.mark.parametrize("behave", STRANGERS.values(), ids=STRANGERS)
def test_stranger(behave: Callable[[socket.socket], None]) -> None:
    """A peer that does not answer like an agent counts as no answer, at the deadline at the latest."""
    with stranger(behave) as port:
        assert soonest_s(port, b"where?") < DEADLINE_S + SLACK_S


def test_answer_without_an_end() -> None:
    """No more of such an answer is read than the maximum length."""
    with stranger(endless) as port, pytest.raises(NoAnswerError, match=f"longer than {MAX_ANSWER} bytes"):
        PeerClient(peer_at(port), RUN, TOKEN, new_instance()).ask(PATH, b"where?", 20)


def test_question_that_is_not_taken() -> None:
    """A peer that accepts a connection and reads nothing of a long question causes no longer delay either."""
    gate = threading.Event()

    def read_nothing(connection: socket.socket) -> None:
        gate.wait(30)

    with stranger(read_nothing) as port:
        assert soonest_s(port, b"x" * (16 << 20)) < DEADLINE_S + SLACK_S
        gate.set()


@pytest.mark.parametrize("host", [HOST, "x" * 70, "a\0b", "a b", "é" * 70])
def test_no_server_at_the_address(host: str) -> None:
    """A closed port and an impossible host count as no answer, at once, and raise no other error."""
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
    client = PeerClient(Peer(0, "node-0", host, port), RUN, TOKEN, new_instance())
    for _ in range(2):
        with pytest.raises(NoAnswerError):
            client.ask(PATH, b"where?", 10)


def test_line_that_is_busy() -> None:
    """A caller that asks while an earlier question is in flight waits no longer than its own deadline."""
    asked = threading.Event()

    def note(connection: socket.socket) -> None:
        asked.set()
        silent(connection)

    with stranger(note) as port:
        client = PeerClient(peer_at(port), RUN, TOKEN, new_instance())
        errors: list[Exception] = []

        def ask() -> None:
            try:
                client.ask(PATH, b"first", 5)
            except NoAnswerError as error:
                errors.append(error)

        first = threading.Thread(target=ask)
        first.start()
        assert asked.wait(60)
        with pytest.raises(NoAnswerError, match="an earlier request has not been answered yet"):
            client.ask(PATH, b"second", 0.1)
    first.join(10)
    assert len(errors) == 1
