"""One rank that ends in the given way while operations are in flight on its device."""

import os
import signal
import sys
from pathlib import Path

from tests.support.devices.device_rank import DeviceRank
from tests.support.ranks.rank import TAPES

rank = DeviceRank(Path(os.environ[TAPES]))
stuck, behind = rank.run(None), rank.start(None)
rank.until(lambda: rank[stuck].started_ns)
[how] = sys.argv[1:]
if how == "raise":
    raise ValueError("the training failed")
if how == "exit":
    sys.exit(3)
if how == "terminate":
    os.kill(os.getpid(), signal.SIGTERM)
    signal.pause()
