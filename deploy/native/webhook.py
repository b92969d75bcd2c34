"""Receives Alertmanager's messages, and appends each as a line to a file.

Usage: `python -m deploy.native.webhook PORT FILE`
"""

from __future__ import annotations

import sys
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

from deploy.native.ports import HOST

MAX_BYTES: Final = 1 << 20


class _Handler(BaseHTTPRequestHandler):
    def __init__(self, output: Path, *arguments: Any) -> None:
        self._output = output
        super().__init__(*arguments)

    def do_POST(self) -> None:
        """Append a message to the file."""
        length = int(self.headers.get("Content-Length") or 0)
        if not 0 < length <= MAX_BYTES:
            self.send_error(413)
            return
        message = self.rfile.read(length).replace(b"\n", b" ")
        with self._output.open("ab") as file:
            file.write(message + b"\n")
        self._say_ok()

    def do_GET(self) -> None:
        """Answer readiness checks."""
        self._say_ok()

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: the messages are written to the file."""

    def _say_ok(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()


def main(port: int, output: Path) -> None:
    """Listen until a signal ends the process."""
    with ThreadingHTTPServer((HOST, port), partial(_Handler, output)) as server:
        server.serve_forever()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
