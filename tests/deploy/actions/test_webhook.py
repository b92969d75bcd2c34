"""The webhook against real HTTPS servers: our example of a receiver, and one that fails as receivers do."""

from __future__ import annotations

import contextlib
import http.client
import json
import shutil
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple, TypeAlias, cast

import pytest
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from deploy.actions import signatures
from deploy.native.ports import free_port
from tests.deploy.actions.verdict import ADAPTERS, adapt, verdict
from tests.servers.certificates import Certificate, make_certificate
from tests.support.waiting import until

Send: TypeAlias = Callable[..., tuple[int, str]]
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
"""The secret in the examples of the specification."""


@pytest.fixture
def certificate(tmp_path: Path) -> Certificate:
    """The certificate of the receiver."""
    return make_certificate(tmp_path, "receiver")


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """The file with the secret."""
    (tmp_path / "secret").write_text(SECRET)
    return tmp_path / "secret"


class Scripted(ThreadingHTTPServer):
    """A receiver that answers as the test says.

    Attributes:
        answers: The codes of the next answers; 200 afterwards. 0 closes the connection.
        received: Headers and bodies of all messages.
    """

    def __init__(self, *answers: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers = list(answers)
        self.received: list[tuple[dict[str, str], bytes]] = []


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        server = cast(Scripted, self.server)
        body = self.rfile.read(int(self.headers["content-length"]))
        server.received.append(({name.lower(): text for name, text in self.headers.items()}, body))
        code = server.answers.pop(0) if server.answers else 200
        if not code:
            return
        self.send_response(code)
        if code == 307:
            self.send_header("location", "https://127.0.0.1:1/elsewhere")
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@contextlib.contextmanager
def receiving(certificate: Certificate, *answers: int) -> Iterator[Scripted]:
    """Serve over TLS."""
    server = Scripted(*answers)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.file, certificate.key)
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def post(server: Scripted, certificate: Certificate, secret: Path, *more: str) -> tuple[int, str]:
    """Post a verdict."""
    url = f"https://127.0.0.1:{server.server_port}/torchdist"
    files = ("--secret-file", str(secret), "--ca-file", str(certificate.file))
    return adapt("webhook.py", verdict("n1"), *files, url, *more)


def test_advice_only(certificate: Certificate, secret: Path) -> None:
    """Without the switch, nothing is sent."""
    with receiving(certificate) as server:
        code, said = post(server, certificate, secret)
        assert (code, said) == (0, f"would post dead (drain) to 127.0.0.1:{server.server_port} (--act does it)")
        assert server.received == []


def test_signed(certificate: Certificate, secret: Path) -> None:
    """The specification's own library accepts the message as ours, and no other body, time or secret."""
    with receiving(certificate) as server:
        code, said = post(server, certificate, secret, "--act")
    [(headers, body)] = server.received
    assert (code, said) == (0, f"posted {headers['webhook-id']} at try 1")
    assert json.loads(body) == json.loads(verdict("n1"))
    assert Webhook(SECRET).verify(body, headers) == json.loads(body)
    for wrong, changes in (
        (body.replace(b"n1", b"n2"), {}),
        (body, {"webhook-timestamp": str(int(headers["webhook-timestamp"]) - 1)}),
    ):
        with pytest.raises(WebhookVerificationError):
            Webhook(SECRET).verify(wrong, headers | changes)
        with pytest.raises(ValueError, match="no signature fits"):
            signatures.verify(signatures.read_secret(secret), headers | changes, wrong)


def test_published_example(secret: Path) -> None:
    """Our signature of the specification's example is the published one; its time is long past."""
    key, body, message_id = signatures.read_secret(secret), b'{"test": 2432232314}', "msg_p5jXN8AQM9LWM0D4loKWxJek"
    signature = signatures.sign(key, message_id, 1614265330, body)
    assert signature == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    headers = {"webhook-id": message_id, "webhook-timestamp": "1614265330", "webhook-signature": f"v1,x {signature}"}
    assert signatures.verify(key, headers, body, now=1614265330 + 300) == message_id
    for now in (1614265330 + 301, 1614265330 - 301):
        with pytest.raises(ValueError, match="too old, or from the future"):
            signatures.verify(key, headers, body, now=now)
    for name in headers:
        with pytest.raises(ValueError, match="a header is missing"):
            signatures.verify(key, {other: text for other, text in headers.items() if other != name}, body)


def test_tries(certificate: Certificate, secret: Path) -> None:
    """While the receiver fails, the message is posted again, with the same id and a new signature."""
    with receiving(certificate, 503, 0, 429) as server:
        code, said = post(server, certificate, secret, "--act")
    ids = {headers["webhook-id"] for headers, _ in server.received}
    assert (code, len(server.received), len(ids)) == (0, 4, 1)
    assert said == f"posted {ids.pop()} at try 4"


@pytest.mark.parametrize("answer", [400, 401, 307])
def test_refused(certificate: Certificate, secret: Path, answer: int) -> None:
    """A refusal is final, and no redirect is followed."""
    with receiving(certificate, answer) as server:
        code, said = post(server, certificate, secret, "--act")
    assert (code, len(server.received)) == (1, 1)
    assert said.startswith("the receiver refuses msg_") and f": {answer} " in said


def test_certificates(certificate: Certificate, secret: Path, tmp_path: Path) -> None:
    """A receiver with another certificate gets nothing, and is not tried again."""
    other = make_certificate(tmp_path, "other")
    with receiving(certificate) as server:
        code, said = post(server, other, secret, "--act")
        assert (code, server.received) == (1, [])
        assert said == "the receiver's certificate: self-signed certificate"


@pytest.mark.parametrize("url", ["http://ops.example/x", "ftp://127.0.0.1/", "https:///x", "file:///etc/passwd"])
def test_addresses(secret: Path, url: str) -> None:
    """Verdicts leave the machine only over TLS."""
    assert adapt("webhook.py", verdict("n1"), "--act", "--secret-file", str(secret), url) == (
        1, f"{url!r} is no https:// address",
    )  # fmt: skip


class Running(NamedTuple):
    """Our receiver: a function that posts to it, the file to which its command appends what it gets, and its port."""

    send: Send
    seen: Path
    port: int


@pytest.fixture
def receiver(certificate: Certificate, secret: Path, tmp_path: Path) -> Iterator[Running]:
    """Our receiver, in a process of its own."""
    port, seen = free_port(), tmp_path / "seen"
    program = f"import sys; open({str(seen)!r}, 'a').write(sys.stdin.read() + chr(10))"
    options = ("--certificate", certificate.file, "--key", certificate.key, "--secret-file", secret)
    process = subprocess.Popen(
        [sys.executable, ADAPTERS / "webhook_receiver.py", "--port", str(port), *options, "--state", tmp_path / "state",
         "--", sys.executable, "-c", program], stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    assert process.stderr.readline() == f"listening on port {port}\n"

    def send(key: Path, *more: str, document: str = verdict("n1")) -> tuple[int, str]:
        files = ("--secret-file", str(key), "--ca-file", str(certificate.file))
        return adapt("webhook.py", document, "--act", *files, f"https://127.0.0.1:{port}/", *more)

    yield Running(send, seen, port)
    process.terminate()
    process.communicate(timeout=30)


def test_receiver(receiver: Running, secret: Path, tmp_path: Path) -> None:
    """Our receiver carries each verdict out once, however often it comes, and none with another secret."""
    send, seen, _ = receiver
    assert send(secret)[0] == send(secret)[0] == 0
    assert send(secret, document=verdict("n1", trace_id="6" * 32))[0] == 0
    (tmp_path / "wrong").write_text("w" * 32)
    code, said = send(tmp_path / "wrong", document=verdict("n1", trace_id="7" * 32))
    assert code == 1 and said.endswith(": 401 Unauthorized")
    until(lambda: seen.exists() and seen.read_text().count("\n") >= 2)
    got = [json.loads(line)["trace_id"] for line in seen.read_text().splitlines()]
    assert got == ["5" * 32, "6" * 32]


@pytest.mark.parametrize(
    ("length", "timestamp", "code"), [("", "", 503), ("²", "", 413), ("9" * 5000, "", 413), ("", "9" * 400, 401)]
)
def test_receiver_that_refuses(
    receiver: Running, certificate: Certificate, secret: Path, tmp_path: Path, length: str, timestamp: str, code: int
) -> None:
    """A verdict that cannot be noted is not carried out, for its repetitions would be; headers may have any value."""
    shutil.rmtree(tmp_path / "state")
    body, now = verdict("n1").encode(), timestamp or str(int(time.time()))
    signature = signatures.sign(signatures.read_secret(secret), "msg_1", int(now), body)
    context = ssl.create_default_context(cafile=str(certificate.file))
    with contextlib.closing(http.client.HTTPSConnection("127.0.0.1", receiver.port, context=context)) as connection:
        connection.putrequest("POST", "/")
        connection.putheader("content-length", (length or str(len(body))).encode())
        connection.putheader("webhook-id", "msg_1")
        connection.putheader("webhook-timestamp", now)
        connection.putheader("webhook-signature", signature)
        connection.endheaders(body if not length else None)
        assert connection.getresponse().status == code
    assert not receiver.seen.exists()
