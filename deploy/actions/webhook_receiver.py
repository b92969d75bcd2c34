"""An example of a receiver: verifies each message, ignores repetitions, and passes it to a command.

    python3 webhook_receiver.py OPTIONS -- python3 slurm.py --act

It runs where the rights are: jobs then need no right to drain nodes, only the secret.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import ssl
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final, cast

from signatures import read_secret, verify

MAX_BYTES: Final = 1 << 20
MAX_KEPT: Final = 10_000
TIMEOUT_S: Final = 60.0


class Receiver(ThreadingHTTPServer):
    """The server.

    Attributes:
        acting: Held while the command runs, so that one verdict is carried out at a time.
    """

    def __init__(self, port: int, secret: bytes, state: Path, command: list[str]) -> None:
        """Listen on a port; keep the ids of received messages in `state`, and pass each message to `command`."""
        super().__init__(("", port), Handler)
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.secret = secret
        self.state = state
        self.command = command
        self.acting = threading.Lock()

    def is_known(self, message_id: str) -> bool:
        """Return whether a message has been carried out."""
        return self._mark(message_id).exists()

    def note(self, message_id: str) -> None:
        """Remember a message, and forget the oldest."""
        self._mark(message_id).touch()
        marks = sorted(self.state.glob("*.id"), key=lambda mark: mark.stat().st_mtime)
        for old in marks[:-MAX_KEPT]:
            old.unlink(missing_ok=True)

    def forget(self, message_id: str) -> None:
        """Forget a message, whose command could not be started."""
        with contextlib.suppress(OSError):
            self._mark(message_id).unlink(missing_ok=True)

    def _mark(self, message_id: str) -> Path:
        return self.state / f"{hashlib.sha256(message_id.encode()).hexdigest()}.id"


class Handler(BaseHTTPRequestHandler):
    """Handles one message."""

    timeout = 10

    def do_POST(self) -> None:
        """Verify the message, and carry it out once."""
        server = cast(Receiver, self.server)
        length = self.headers.get("content-length", "")
        if not (length.isascii() and length.isdecimal() and len(length) < 10) or int(length) > MAX_BYTES:
            return self._answer(413)
        body = self.rfile.read(int(length))
        try:
            message_id = verify(server.secret, dict((name.lower(), text) for name, text in self.headers.items()), body)
        except ValueError as error:
            self.log_message("refused: %s", error)
            return self._answer(401)
        with server.acting:
            if server.is_known(message_id):
                return self._answer(200)
            try:
                # Before it is carried out, and also if that is refused: a limit is no reason to try again.
                server.note(message_id)
                done = subprocess.run(server.command, input=body, capture_output=True, timeout=TIMEOUT_S)
            except OSError as error:
                server.forget(message_id)
                self.log_message("%s: %s", message_id, error)
                return self._answer(503)
            except subprocess.TimeoutExpired as error:
                self.log_message("%s: %s", message_id, error)
                return self._answer(200)
        self.log_message("%s: code %d: %s", message_id, done.returncode, done.stdout.decode(errors="replace").strip())
        return self._answer(200)

    def _answer(self, code: int) -> None:
        self.send_response(code)
        self.send_header("content-length", "0")
        self.end_headers()


def main() -> None:
    """Serve until the process is ended."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--certificate", type=Path, required=True, metavar="FILE")
    parser.add_argument("--key", type=Path, required=True, metavar="FILE")
    parser.add_argument("--secret-file", type=Path, required=True, metavar="FILE")
    parser.add_argument("--state", type=Path, required=True, metavar="DIRECTORY")
    parser.add_argument("command", nargs="+", help="gets the verdict on its standard input")
    arguments = parser.parse_args()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(arguments.certificate, arguments.key)
    server = Receiver(arguments.port, read_secret(arguments.secret_file), arguments.state, arguments.command)
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    print(f"listening on port {server.server_port}", file=sys.stderr, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
