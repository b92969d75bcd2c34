"""The program of `workers/programs.py` that uses each symbol of the table."""

from __future__ import annotations

from otel_torchdist.capture.upstream import compiled, core, launch, rpc, training
from otel_torchdist.capture.upstream.symbol import TorchSymbol


def _program_of(symbol: TorchSymbol) -> str:
    if any(word in symbol.owner for word in ("fsdp", "pipelining", "device_mesh", "distributed.tensor")):
        return "sharded"
    return "files" if any(word in symbol.owner for word in ("checkpoint", "serialization")) else "ddp"


SYMBOLS_OF: dict[str, tuple[TorchSymbol, ...]] = {
    "core": core.SYMBOLS,
    "compiled": compiled.SYMBOLS,
    **{
        name: tuple(symbol for symbol in training.SYMBOLS if _program_of(symbol) == name)
        for name in ("ddp", "sharded", "files")
    },
    "rpc": rpc.SYMBOLS,
    "launch": launch.SYMBOLS,
}
