"""Lines of JSON from ranks that share a file. Imports nothing of the package, for programs that run without it, too."""

from __future__ import annotations

import json
from typing import Any


def say(**facts: Any) -> None:
    """Write a line of JSON at once: ranks of torchrun are unbuffered, so `print` writes text and newline separately."""
    print(json.dumps(facts) + "\n", end="", flush=True)
