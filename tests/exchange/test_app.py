"""Signed questions over real connections: who is answered, who is refused, and what nobody can hold up."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from otel_torchdist.exchange import envelope as envelopes
from otel_torchdist.exchange.app import MAX_QUESTION, ExchangeApp
from otel_torchdist.exchange.client import MAX_ANSWER, Line, NoAnswerError
from otel_torchdist.exchange.envelope import SIGNATURE_HEADER, TO_HEADER, Envelope, Numbers, envelope_from, new_life
from otel_torchdist.exchange.wire import decode_question
from otel_torchdist.tape.peers import Peer
from otel_torchdist.telemetry import scrape_clients
from otel_torchdist.telemetry.shared_page import App
from tests.exchange.listening import HOST, peer_at, served, stranger, until

RUN = 0xFEED
TOKEN = b"t" * 32
OTHER_TOKEN = b"o" * 32
SECRET = b"which rank is where"
PATH = "/v1/echo"
PARSED = "/v1/parsed"
DEADLINE_S = 0.3
SLACK_S = 0.2
"""What a loaded machine may take to notice a deadline."""


class Echo:
    """Answers what it was asked, and something that nobody else may see."""

    token = TOKEN

    def __init__(self) -> None:
        self.heard: list[bytes] = []

    def respond(self, path: str, body: bytes) -> bytes | None:
        """Tell the secret, on one path; on another one insist on a question."""
        self.heard.append(body)
        if path == PARSED:
            decode_question(body)
        return SECRET + body if path in (PATH, PARSED) else None


class Agent:
    """One that listens."""

    def __init__(self, echo: Echo, life: str, port: int) -> None:
        self.echo, self.life, self.port = echo, life, port

    def line(self, token: bytes = TOKEN, run: int = RUN) -> Line:
        """Another agent's way to it."""
        return Line(peer_at(self.port), run, token, new_life())

    def post(self, headers: dict[str, str], body: bytes = b"", path: str = PATH) -> http.client.HTTPResponse:
        """Ask it by hand."""
        connection = http.client.HTTPConnection(HOST, self.port, timeout=10)
        connection.request("POST", path, body, headers)
        response = connection.getresponse()
        response.body = response.read()  # type: ignore[attr-defined]
        connection.close()
        return response

    def say(self, request: bytes) -> bytes:
        """Send bytes, and read until it closes the connection."""
        with socket.create_connection((HOST, self.port), timeout=10) as connection:
            connection.sendall(request)
            return b"".join(iter(lambda: connection.recv(1 << 16), b""))


class Current:
    """Whichever agent is alive behind a port; to start and end a server takes a while."""

    app: App

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., object]) -> Iterable[bytes]:
        """Answer as that agent does."""
        return self.app(environ, start_response)


@pytest.fixture(scope="module")
def current() -> Iterator[tuple[Current, int]]:
    """What is served, and its port."""
    app = Current()
    with served(app) as port:
        yield app, port


@pytest.fixture
def agent(current: tuple[Current, int]) -> Agent:
    """An agent of the run, which nobody has asked yet."""
    behind, port = current
    return begin_life(behind, port)


def begin_life(behind: Current, port: int) -> Agent:
    """Let another agent take its place."""
    life, echo = new_life(), Echo()
    app = ExchangeApp(life)
    app.add(RUN, echo)
    behind.app = app
    return Agent(echo, life, port)


def headers_for(
    agent: Agent, body: bytes = b"", token: bytes = TOKEN, run: int = RUN, sender: str = "s" * 16, number: int = 1
) -> dict[str, str]:
    """Headers as an agent of the run would send them."""
    envelope = Envelope(run, sender, agent.life, number)
    return envelope.headers(token, PATH, body)


def status_of(answer: bytes) -> int:
    """The status of a whole answer."""
    return int(answer.split()[1])


# --- answers ----------------------------------------------------------------------------------------------------


def test_signed_question_is_answered(agent: Agent) -> None:
    """Whoever knows the token gets the answer, with the times between which it was made."""
    line, before = agent.line(), time.monotonic_ns()
    answered = line.ask(PATH, b"where?", 10)
    assert answered.body == SECRET + b"where?"
    assert before <= answered.asked_ns < answered.heard_ns <= time.monotonic_ns()
    assert [line.ask(PATH, bytes([number]), 10).body for number in range(3)] == [
        SECRET + bytes([number]) for number in range(3)
    ]


def test_answers_are_signed(agent: Agent) -> None:
    """The signature is that of this answer to this question under this token, and of nothing else."""
    body = b"where?"
    headers = headers_for(agent, body)
    envelope = envelope_from(headers)
    assert envelope is not None
    response = agent.post(headers, body)
    signature, answer = response.headers[SIGNATURE_HEADER], response.body  # type: ignore[attr-defined]
    assert signature == envelope.sign_answer(TOKEN, 200, answer)
    others = {
        envelope.sign_answer(OTHER_TOKEN, 200, answer),
        envelope.sign_answer(TOKEN, 409, answer),
        envelope.sign_answer(TOKEN, 200, answer + b" "),
        envelope.sign_request(TOKEN, PATH, answer),
        Envelope(RUN, "s" * 16, agent.life, 2).sign_answer(TOKEN, 200, answer),
    }
    assert len(others) == 5
    assert signature not in others


def test_unknown_path(agent: Agent) -> None:
    """An agent of the run that asks for what there is not gets a signed 404, which is no answer."""
    with pytest.raises(NoAnswerError, match="refuses with status 404"):
        agent.line().ask("/v1/else", b"", 10)


def test_malformed_question(agent: Agent) -> None:
    """What is signed and is no question gets a signed 400, whatever bytes it is; the agent goes on answering."""
    line = agent.line()
    for body in (b"", b"\xc1", b"\x93\x01", b"\xdd\xff\xff\xff\xff", b"\x81\xa4seat\xa1x", b"\x91" * 100_000):
        with pytest.raises(NoAnswerError, match="refuses with status 400"):
            line.ask(PARSED, body, 10)
    assert line.ask(PATH, b"still there?", 10).body.endswith(b"still there?")


def test_restarted_agent_is_found_with_the_second_question(agent: Agent, current: tuple[Current, int]) -> None:
    """An agent that has been restarted refuses the first question, says its life, and answers the second."""
    line = agent.line()
    for _ in range(3):
        assert line.ask(PATH, b"where?", 10).body == SECRET + b"where?"
        assert line.ask(PATH, b"and now?", 10).body == SECRET + b"and now?"
        assert agent.echo.heard == [b"where?", b"and now?"]
        agent = begin_life(*current)


# --- who is refused -----------------------------------------------------------------------------------------------


def without(name: str) -> Callable[[Agent], dict[str, str]]:
    """Headers of which one is not there."""
    return lambda agent: {key: value for key, value in headers_for(agent).items() if key != name}


REFUSED: dict[str, Callable[[Agent], dict[str, str]]] = {
    "no headers": lambda agent: {},
    "no signature": without(SIGNATURE_HEADER),
    "no receiver": lambda agent: headers_for(agent) | {TO_HEADER: ""},
    "another body": lambda agent: headers_for(agent, b"another"),
    "another number": lambda agent: headers_for(agent) | {envelopes.NUMBER_HEADER: "2"},
    "another sender": lambda agent: headers_for(agent) | {envelopes.FROM_HEADER: "x" * 16},
    "signature that is no text": lambda agent: headers_for(agent) | {SIGNATURE_HEADER: "\xff\xfe"},
    "another run's token": lambda agent: headers_for(agent, token=OTHER_TOKEN),
    "unknown run": lambda agent: headers_for(agent, run=RUN + 1),
    "run that is no number": lambda agent: headers_for(agent) | {envelopes.RUN_HEADER: "feedx"},
    "run out of range": lambda agent: headers_for(agent) | {envelopes.RUN_HEADER: "f" * 33},
    "number that is none": lambda agent: headers_for(agent) | {envelopes.NUMBER_HEADER: "1e3"},
    "number out of range": lambda agent: headers_for(agent, number=1 << 63),
    "number 0": lambda agent: headers_for(agent, number=0),
    "endless number": lambda agent: headers_for(agent) | {envelopes.NUMBER_HEADER: "9" * 6_000},
    "short sender": lambda agent: headers_for(agent, sender="s"),
}


@pytest.mark.parametrize("make", REFUSED.values(), ids=REFUSED)
def test_refused(make: Callable[[Agent], dict[str, str]], agent: Agent) -> None:
    """Each gets the same 403, with nothing in it and no signature, and the question reaches nobody."""
    response = agent.post(make(agent))
    assert response.status == 403
    assert response.body == b""  # type: ignore[attr-defined]
    assert SIGNATURE_HEADER not in response.headers
    assert agent.life not in str(response.headers)
    assert agent.echo.heard == []


def test_run_that_is_over(agent: Agent, current: tuple[Current, int]) -> None:
    """A run that has been dropped is as unknown as one that never was."""
    line = agent.line()
    line.ask(PATH, b"", 10)
    app = current[0].app
    assert isinstance(app, ExchangeApp)
    for _ in range(2):
        app.drop(RUN)
        with pytest.raises(NoAnswerError, match=r"status 403\) does not know the run's token"):
            line.ask(PATH, b"", 10)


def request_bytes(headers: dict[str, str], body: bytes) -> bytes:
    """A request as it goes over the wire."""
    lines = [f"POST {PATH} HTTP/1.1", f"Host: {HOST}", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


def test_replay(agent: Agent) -> None:
    """The exact bytes of a question that was answered are refused when they come again; so is a lower number."""
    body = b"where?"
    request = request_bytes(headers_for(agent, body, number=7), body)
    assert SECRET in agent.say(request)
    for again in (request, request, request_bytes(headers_for(agent, body, number=6), body)):
        answer = agent.say(again)
        assert status_of(answer) == 403
        assert SECRET not in answer
    assert agent.echo.heard == [body]
    assert SECRET in agent.say(request_bytes(headers_for(agent, body, number=8), body))


def test_replay_to_a_restarted_agent(agent: Agent, current: tuple[Current, int]) -> None:
    """The agent that has taken its place has no memory of the question, and refuses it for it was not meant for it."""
    body = b"where?"
    request = request_bytes(headers_for(agent, body), body)
    restarted = begin_life(*current)
    answer = restarted.say(request)
    assert status_of(answer) == 409
    assert answer.partition(b"\r\n\r\n")[2] == restarted.life.encode()
    assert restarted.echo.heard == []


def test_other_methods(agent: Agent) -> None:
    """There is nothing to get, to put or to look at, signed or not."""
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers_for(agent).items())
    for method in ("GET", "HEAD", "PUT", "DELETE", "OPTIONS", "NONSENSE"):
        answer = agent.say(f"{method} {PATH} HTTP/1.1\r\nHost: {HOST}\r\n{lines}\r\n".encode())
        assert status_of(answer) == 404
        assert answer.partition(b"\r\n\r\n")[2] == b""
    assert agent.echo.heard == []


def test_question_without_length(agent: Agent) -> None:
    """A question of unknown length is not read, chunked or not."""
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers_for(agent).items())
    for more in ("", "Transfer-Encoding: chunked\r\n", "Content-Length: -1\r\n", "Content-Length: 1e3\r\n"):
        answer = agent.say(f"POST {PATH} HTTP/1.1\r\nHost: {HOST}\r\n{lines}{more}\r\n".encode())
        assert status_of(answer) == 411
    assert agent.echo.heard == []


@pytest.mark.parametrize("length", [str(MAX_QUESTION + 1), "9" * 18, "9" * 6_000])
def test_question_that_is_too_long(length: str, agent: Agent) -> None:
    """It is refused at once, though not a byte of it has come, and however long it says that it is."""
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers_for(agent).items())
    began = time.monotonic()
    answer = agent.say(f"POST {PATH} HTTP/1.1\r\nHost: {HOST}\r\n{lines}Content-Length: {length}\r\n\r\n".encode())
    assert status_of(answer) == 413
    assert time.monotonic() - began < 5


def test_longest_question(agent: Agent) -> None:
    """One that is as long as it may be arrives whole."""
    body = b"x" * MAX_QUESTION
    assert agent.line().ask(PATH, body, 10).body == SECRET + body


def test_table_of_senders_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many senders the ones that asked last are remembered, and of those each number."""
    monkeypatch.setattr(envelopes, "MAX_SENDERS", 8)
    numbers = Numbers()
    asked = [Envelope(RUN, f"{sender:016x}", "", 1) for sender in range(20)]
    assert all(numbers.is_new(envelope) for envelope in asked)
    assert len(numbers._last) == 8
    assert not any(numbers.is_new(envelope) for envelope in asked[-8:])
    assert numbers.is_new(Envelope(RUN + 1, asked[-1].sender, "", 1))


def test_many_ask_at_once(agent: Agent) -> None:
    """Lines of several agents, each used by several threads, all get all of their answers."""
    lines = [agent.line() for _ in range(4)]
    missed: list[object] = []

    def ask(line: Line, who: int) -> None:
        for turn in range(10):
            body = bytes([who, turn])
            if line.ask(PATH, body, 20).body != SECRET + body:
                missed.append((who, turn))

    threads = [threading.Thread(target=ask, args=(line, who)) for who, line in enumerate(itertools.chain(lines, lines))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert missed == []
    assert len(agent.echo.heard) == 80


def test_questions_that_do_not_come_shut_nobody_out(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who knows the run's id, and not its token, cannot take all places with questions that never end."""
    monkeypatch.setattr(scrape_clients, "MAX_CLIENTS", 8)
    request = request_bytes(headers_for(agent, token=OTHER_TOKEN), b"").replace(b"Length: 0", b"Length: 1000")
    with contextlib.ExitStack() as stack:
        slow = [stack.enter_context(socket.create_connection((HOST, agent.port), timeout=10)) for _ in range(8)]
        for client in slow:
            client.sendall(request)
        line = agent.line()
        for body in (b"one", b"two"):
            assert line.ask(PATH, body, 5).body == SECRET + body
    assert agent.echo.heard == [b"one", b"two"]


# --- what nobody can hold up --------------------------------------------------------------------------------------


def answering(answer: bytes) -> Callable[[socket.socket], None]:
    """Hears a question, says something, and closes."""

    def behave(connection: socket.socket) -> None:
        connection.recv(1 << 16)
        connection.sendall(answer)

    return behave


def silent(connection: socket.socket) -> None:
    """Takes everything, and says nothing."""
    while connection.recv(1 << 16):
        pass


def dripping(start: bytes, drop: bytes) -> Callable[[socket.socket], None]:
    """Says a little again and again, so that no single wait is long."""

    def behave(connection: socket.socket) -> None:
        connection.recv(1 << 16)
        connection.sendall(start)
        while True:
            connection.sendall(drop)
            time.sleep(0.02)

    return behave


def stalling(start: bytes, after_s: float) -> Callable[[socket.socket], None]:
    """Says its first words late, and no more."""

    def behave(connection: socket.socket) -> None:
        connection.recv(1 << 16)
        time.sleep(after_s)
        connection.sendall(start)
        silent(connection)

    return behave


def endless(connection: socket.socket) -> None:
    """An answer without an end, as fast as it is taken."""
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
    """How long a question takes that nobody answers; the machine may be held up by others meanwhile, but not often."""
    took_s: list[float] = []
    while len(took_s) < 5 and min(took_s, default=1e9) >= DEADLINE_S + SLACK_S:
        began = time.monotonic()
        with pytest.raises(NoAnswerError):
            Line(peer_at(port), RUN, TOKEN, new_life()).ask(PATH, body, DEADLINE_S)
        took_s.append(time.monotonic() - began)
    return min(took_s)


@pytest.mark.parametrize("behave", STRANGERS.values(), ids=STRANGERS)
def test_stranger(behave: Callable[[socket.socket], None]) -> None:
    """What answers there as no agent does is no answer, at the deadline at the latest."""
    with stranger(behave) as port:
        assert soonest_s(port, b"where?") < DEADLINE_S + SLACK_S


def test_answer_without_an_end() -> None:
    """No more of it is taken than an answer may be long."""
    with stranger(endless) as port, pytest.raises(NoAnswerError, match=f"longer than {MAX_ANSWER} bytes"):
        Line(peer_at(port), RUN, TOKEN, new_life()).ask(PATH, b"where?", 20)


def test_question_that_is_not_taken() -> None:
    """A peer that accepts and reads nothing of a long question holds nobody up either."""
    gate = threading.Event()

    def read_nothing(connection: socket.socket) -> None:
        gate.wait(30)

    with stranger(read_nothing) as port:
        assert soonest_s(port, b"x" * (16 << 20)) < DEADLINE_S + SLACK_S
        gate.set()


@pytest.mark.parametrize("host", [HOST, "x" * 70, "a\0b", "a b", "é" * 70])
def test_nobody_there(host: str) -> None:
    """A port that is closed and a host that can be none are no answer, at once, and no other error."""
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
    line = Line(Peer(0, "node-0", host, port), RUN, TOKEN, new_life())
    for _ in range(2):
        with pytest.raises(NoAnswerError):
            line.ask(PATH, b"where?", 10)


def test_line_that_is_busy() -> None:
    """Who asks while an earlier question is under way waits no longer than its own deadline."""
    with stranger(silent) as port:
        line = Line(peer_at(port), RUN, TOKEN, new_life())
        errors: list[Exception] = []

        def ask() -> None:
            try:
                line.ask(PATH, b"first", 0.5)
            except NoAnswerError as error:
                errors.append(error)

        first = threading.Thread(target=ask)
        first.start()
        until(line._lock.locked)
        with pytest.raises(NoAnswerError, match="an earlier question has not been answered yet"):
            line.ask(PATH, b"second", 0.1)
        first.join(10)
        assert len(errors) == 1
