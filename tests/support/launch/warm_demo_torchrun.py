"""torchrun as a fork of the demo: it keeps nothing of the demo open, and removes nothing of it at its own end."""

from __future__ import annotations

import os
import runpy
import weakref

from tests.support.launch.torchrun import TORCHRUN

if __name__ == "__main__":
    weakref.finalize._registry.clear()  # type: ignore[attr-defined]
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    runpy.run_path(str(TORCHRUN), run_name="__main__")
