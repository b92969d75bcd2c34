"""Names of torch's types, from which sizes of messages follow."""

from __future__ import annotations

import torch

from otel_torchdist.statistics.traffic import described_bytes
from otel_torchdist.tape.names.model import SignatureName


def test_bytes_of_every_type() -> None:
    """The rule for names of types holds for all types that this torch has."""
    types = {value for value in vars(torch).values() if isinstance(value, torch.dtype)}
    assert len(types) > 20
    for one in types:
        name = str(one).removeprefix("torch.")
        assert described_bytes(SignatureName("recv", "", ((1,),), (name,), "cpu", 1)) == one.itemsize, name
