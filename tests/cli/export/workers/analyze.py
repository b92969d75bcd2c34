"""What `torchfrtrace` reports of each folder given, as a line of JSON: its messages, and the error that ended it.

`analyze.py OPTIONS FOLDER…`, where `OPTIONS` are those of `torchfrtrace` for all folders, as in a shell.
"""

import json
import logging
import shlex
import sys
from argparse import Namespace

from torch.distributed.flight_recorder import fr_trace
from torch.distributed.flight_recorder.components.loader import read_dir


class Kept(logging.Handler):
    """Keeps messages."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a message."""
        self.lines.append(record.getMessage())


options, folders = shlex.split(sys.argv[1]), sys.argv[2:]
for folder in folders:
    kept = Kept()
    logging.getLogger("Flight Recorder").handlers = [kept]
    error, opened = "", 0
    try:
        opened = len(read_dir(Namespace(trace_dir=folder, prefix=None))[0])
        fr_trace.main([folder, *options])
    except Exception as raised:
        error = f"{type(raised).__name__}: {raised}"
    print(json.dumps({"folder": folder, "opened": opened, "log": "\n".join(kept.lines), "error": error}))
