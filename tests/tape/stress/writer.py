"""Writes a tape from several threads as fast as it can, each field a function of one number.

Arguments: directory, capacity, records, threads. Prints the tape's path, waits for a line, writes (fewer records on a
machine that would take too long), prints how many records there are, and ends with its input.
"""

import itertools
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from otel_torchdist.model.kinds import How, TapeState
from otel_torchdist.tape.layout import Word
from otel_torchdist.tape.writer import TapeWriter
from tests.support.tapes.tapes import new_writer
from tests.tape.stress.fields import ended_after, fields_of, returned_after, step_of

SECONDS = 8.0
HELD_OPEN = 5
"""Of fifty operations of a thread, this many end only after the others: they move to the refuge and end late."""


def write(writer: TapeWriter, seeds: Iterator[int], records: int, deadline: float) -> None:
    """Enter and end operations; every eleventh record is a step. At least a tenth is written, however long it takes."""
    held: list[tuple[int, int, int]] = []
    for turn in range(records):
        seed = next(seeds)
        if turn % 11 == 0:
            writer.step_ended(*step_of(seed))
            continue
        fields = fields_of(seed)
        number = writer.begin(*fields)
        writer.mark(number, Word.RETURNED, returned_after(seed), How.CALL)
        if turn % 50 < HELD_OPEN:
            held.append((number, seed, fields[0]))
            continue
        writer.complete(number, fields[0], fields[0] + ended_after(seed), How.WAIT)
        if turn % 50 == 49:
            for number, seed, entered in held:
                writer.complete(number, entered, entered + ended_after(seed), How.POLL)
            held.clear()
            if turn >= records // 10 and time.monotonic() > deadline:
                return


def main() -> None:
    """Write with as many thread switches as possible."""
    capacity, records, threads = map(int, sys.argv[2:])
    writer = new_writer(Path(sys.argv[1]), capacity)
    print(writer.path, flush=True)
    sys.stdin.readline()
    sys.setswitchinterval(1e-5)
    seeds = itertools.count(1)
    arguments = (writer, seeds, records // threads, time.monotonic() + SECONDS)
    workers = [threading.Thread(target=write, args=arguments) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    writer.finish(TapeState.FINISHED)
    print(writer.next_number() - 1, flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    main()
