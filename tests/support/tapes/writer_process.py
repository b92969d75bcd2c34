"""A rank in a process of its own: creates a tape, prints its path, then obeys commands of one word per line."""

import os
import signal
import sys
from pathlib import Path

from otel_torchdist.model.kinds import Flag, How, RecordKind, TapeState
from otel_torchdist.node.job.leftovers import clean_up
from otel_torchdist.tape.layout import Word
from otel_torchdist.tape.reading.reader import TapeReader
from otel_torchdist.tape.records.splits import pack_splits
from tests.support.tapes.tapes import begin, new_writer


def main() -> None:
    """Obey until the input ends."""
    directory = Path(sys.argv[1])
    writer = new_writer(directory, int(sys.argv[2]))
    print(writer.path, flush=True)
    for line in sys.stdin:
        answer = "done"
        match line.split():
            case ["fork"]:
                child = os.fork()
                if not child:
                    signal.pause()
                    os._exit(0)
                answer = str(child)
            case ["begin"]:
                answer = str(begin(writer))
            case ["splits"]:
                writer.write_splits(pack_splits(1_000, 0, [5, 6, 7], 4, 100))
            case ["uneven"]:
                writer.begin(1_000, 0, 1, 72, 0, 0, 0, 0, -1, 0, 0, RecordKind.OPERATION, Flag.UNEVEN)
            case ["wait", number]:
                writer.mark(int(number), Word.WAIT_ENTERED, 5, How.CALL)
            case ["alive", path]:
                answer = str(TapeReader(Path(path)).is_alive())
            case ["clean"]:
                clean_up(directory.parent, 0, 0)
            case ["finish"]:
                writer.finish(TapeState.FINISHED)
            case ["close"]:
                writer.close()
            case unknown:
                answer = f"what is {unknown}?"
        print(answer, flush=True)


if __name__ == "__main__":
    main()
