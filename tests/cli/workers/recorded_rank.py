"""Stands for a rank with a flight recorder: it answers on its pipe and, like the debug server, on a given port."""

from __future__ import annotations

import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

DUMPS = [Path(path).read_text() for path in sys.argv[2:]]


class Page(BaseHTTPRequestHandler):
    """The page of `torch.distributed.debug`."""

    def do_GET(self) -> None:
        """Return the dumps of all ranks."""
        answers = (f"<h2>Rank {n}: http://h:1/</h2>\n\n  <pre>{text}</pre>" for n, text in enumerate(DUMPS))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(f"<h1>FlightRecorder gloo</h1>{''.join(answers)}".encode())

    def log_message(self, *args: object) -> None:
        """Print nothing."""


def main() -> None:
    """Serve until killed."""
    port = int(sys.argv[1])
    if port:
        server = HTTPServer(("127.0.0.1", port), Page)
        threading.Thread(target=server.serve_forever, daemon=True).start()
    pipe = Path(f"{os.environ['TORCH_NCCL_DEBUG_INFO_PIPE_FILE']}{os.environ['RANK']}.pipe")
    os.mkfifo(pipe)
    # As NCCL's monitor does, it never waits for a writer; a writer of its own keeps the pipe open.
    with open(os.open(pipe, os.O_RDWR), "rb", buffering=0) as stream:
        while stream.read(1):
            Path(f"{os.environ['TORCH_FR_DUMP_TEMP_FILE']}{os.environ['RANK']}").write_text(DUMPS[0])


if __name__ == "__main__":
    main()
