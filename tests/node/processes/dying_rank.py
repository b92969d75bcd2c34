"""A rank as a process that has a tape and obeys commands; arguments are its directory, rank and world size (4).

`exit <code>`, `finish <code>` (its script, then it exits), `give-up` (as a backend does that waited for too long),
`eat` (memory, without end), `join <process group>`, `handle` (SIGTERM, from now on), `ignore` (SIGTERM).
"""

import os
import signal
import sys
from pathlib import Path

from otel_torchdist.model.kinds import TapeState
from otel_torchdist.model.names import GIVEN_UP
from otel_torchdist.tape.identity import identify
from otel_torchdist.tape.writer import TapeWriter


def main() -> None:
    """Obey the command."""
    rank, world_size = int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 4
    writer = TapeWriter(Path(sys.argv[1]), identify(rank, rank, world_size, 64))
    print(writer.path, flush=True)
    for line in sys.stdin:
        match line.split():
            case ["exit", code]:
                os._exit(int(code))
            case ["finish", code]:
                writer.finish(TapeState.FINISHED)
                sys.exit(int(code))
            case ["give-up"]:
                writer.announce_failure(writer.names.intern(GIVEN_UP))
                os._exit(1)
            case ["join", group]:
                os.setpgid(0, int(group))
            case ["handle"]:
                signal.signal(signal.SIGTERM, lambda number, frame: None)
            case ["ignore"]:
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
            case ["eat"]:
                eaten: list[bytes] = []
                while True:
                    eaten.append(os.urandom(1 << 20))


if __name__ == "__main__":
    main()
