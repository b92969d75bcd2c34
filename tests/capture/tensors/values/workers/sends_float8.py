"""Two ranks, of which the first sends numbers in float8 to the other; gloo takes them in messages only."""

from __future__ import annotations

import torch
import torch.distributed as dist

from otel_torchdist.capture.tensors.choice import Observers
from otel_torchdist.capture.tensors.numerics import NumericsObserver
from otel_torchdist.config import NumericsMode
from tests.support.ranks.rank import join, rank, start_capture


def main() -> None:
    """Send."""
    start_capture(observers=Observers(numerics=NumericsObserver(NumericsMode.ALL, 1)))
    join()
    values = torch.tensor([-1e9, 0.0, 0.0, 1.5]).clamp(-448, 448).to(torch.float8_e4m3fn)
    if rank() == 0:
        dist.send(values, 1)
    else:
        dist.recv(values, 0)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
