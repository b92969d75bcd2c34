"""The self-check's program: makes one call of `torch.distributed`, and prints as JSON what has recorded it."""

from __future__ import annotations

import json
import logging
import sys
from importlib.metadata import version
from pathlib import Path

_NATIVELY = "recording natively, with "


class _MessageList(logging.Handler):
    """A handler that keeps the messages of our logger."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a message."""
        self.texts.append(record.getMessage())


def main() -> None:
    """Make the call, and print what has recorded it."""
    messages = _MessageList()
    logger = logging.getLogger("otel_torchdist")
    logger.setLevel(logging.INFO)
    logger.addHandler(messages)
    outcome: dict[str, object] = {"version": version("otel-torchdist"), "torch": "", "is_recorded": False}
    try:
        import torch
        from torch import distributed
    except (ImportError, OSError) as error:
        print(json.dumps({**outcome, "trouble": str(error)}))
        return
    outcome["torch"] = str(torch.__version__)
    if distributed.is_available():
        distributed.init_process_group("gloo", init_method=f"file://{sys.argv[1]}/store", rank=0, world_size=1)
        distributed.all_reduce(torch.ones(1))
        distributed.destroy_process_group()
        last = (messages.texts or ["torch has not loaded it, and its log says nothing"])[-1]
        outcome["trouble"] = last.replace("recording in Python: ", "", 1)
    else:
        outcome["trouble"] = "this torch has no torch.distributed"
    outcome["is_recorded"] = any(Path(sys.argv[1]).rglob("*.tape"))
    libraries = [text[len(_NATIVELY) :] for text in messages.texts if text.startswith(_NATIVELY)]
    if libraries:
        import otel_torchdist

        home = Path(otel_torchdist.__file__).parent
        outcome |= {"library": libraries[0], "is_own": home in Path(libraries[0]).parents}
    print(json.dumps(outcome))


if __name__ == "__main__":
    main()
