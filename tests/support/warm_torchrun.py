"""torchrun that forks its ranks, and that is itself forked from an interpreter that has imported torch.

The variable WARM_TORCHRUN holds, as JSON, the path of a file for the id of its process, and its arguments.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from torch.distributed import run

from tests.support.forked_ranks import fork_ranks

if __name__ == "__main__":
    pid_file, *arguments = json.loads(os.environ.pop("WARM_TORCHRUN"))
    Path(pid_file).write_text(str(os.getpid()))
    fork_ranks()
    run.main(arguments)
