"""Follows a tape until its writer has finished, checks every record, and prints counts as JSON.

Arguments: the tape, records per poll.
"""

import dataclasses
import json
import sys
from dataclasses import dataclass
from pathlib import Path

from otel_torchdist.model.kinds import TapeState
from otel_torchdist.tape.reading.batch import Batch
from otel_torchdist.tape.reading.reader import TapeReader
from tests.tape.stress.fields import is_whole, is_whole_step


@dataclass
class Counts:
    """What the reader has read.

    Attributes:
        entered: Operations.
        ended: Ends.
        steps: Steps.
        torn: Records whose fields do not all belong together.
        twice: Records that were delivered again, or out of order.
        lost: What the reader counted as lost.
        still_open: Operations open at the end.
        last_step: Number of the last step's record.
    """

    entered: int = 0
    ended: int = 0
    steps: int = 0
    torn: int = 0
    twice: int = 0
    lost: int = 0
    still_open: int = 0
    last_step: int = 0

    def add(self, batch: Batch, open_before: set[int]) -> None:
        """Check a batch."""
        self.entered += len(batch.entered)
        self.ended += len(batch.ended)
        self.steps += len(batch.steps)
        self.torn += sum(not is_whole(operation) for operation in batch.entered + batch.ended)
        self.torn += sum(not is_whole_step(step) for step in batch.steps)
        entered = {operation.number for operation in batch.entered}
        ended = {operation.number for operation in batch.ended}
        self.twice += len(batch.entered) - len(entered - open_before)
        self.twice += len(batch.ended) - len(ended & (entered | open_before))
        for step in batch.steps:
            self.twice += step.number <= self.last_step
            self.last_step = step.number


def main() -> None:
    """Poll without pause."""
    reader = TapeReader(Path(sys.argv[1]))
    limit = int(sys.argv[2])
    counts = Counts()
    print("ready", flush=True)
    finished = False
    while True:
        before = {operation.number for operation in reader.open_operations()}
        batch = reader.poll(limit)
        counts.add(batch, before)
        found = batch.entered or batch.ended or batch.steps or batch.lost
        if finished and not found:
            break
        finished = reader.status().state is TapeState.FINISHED
    counts.lost = reader.lost
    counts.still_open = len(reader.open_operations())
    counts.torn += sum(not is_whole(operation) for operation in reader.open_operations())
    print(json.dumps(dataclasses.asdict(counts)))


if __name__ == "__main__":
    main()
