"""Generates the page on the private symbols of torch that we use."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from otel_torchdist.capture.upstream import compiled, core, launch, rpc, training
from otel_torchdist.capture.upstream.headers import FUNCTIONS, HEADERS
from otel_torchdist.capture.upstream.symbol import Loss, TorchSymbol
from reference.pages import table, titled_page

TABLES: Final = {
    "Operations and groups": core.SYMBOLS,
    "Training loops": training.SYMBOLS,
    "`torch.compile`": compiled.SYMBOLS,
    "Remote procedure calls": rpc.SYMBOLS,
    "Launchers": launch.SYMBOLS,
}
"""The symbols, by the heading of their table on the page."""
_REPORTED: Final = {
    Loss.RECORDING: " One warning.",
    Loss.FEATURE: " One warning.",
    Loss.NOTHING: "",
}


def upstream_page() -> str:
    """Return the page of all private symbols of torch, from `capture/upstream`."""
    return titled_page(
        "What do we use of torch that torch does not promise?",
        "otel_torchdist/capture/upstream",
        "Which version of torch may break recording, and what is lost then? Every private or undocumented symbol of "
        "torch that this package uses is a row here. The code looks symbols up by these rows, and a test fails if the "
        "package uses another private name.",
        "Without a symbol, the training goes on, and the log has at most one warning: `this torch has no …:` and what "
        "is lost. `tests/capture/upstream` takes each symbol away in turn, and compares the training's result, exit "
        "code and log. To try another torch, also a pre-release:",
        "```\nmake test TORCH=2.14.1\nmake test TORCH=2.16.0.dev20261101 TORCH_INDEX=…\n```",
        "`TORCH_INDEX` is the package index that has the pre-release: PyTorch's install page names it.",
        *(part for heading, symbols in TABLES.items() for part in (f"## {heading}", _symbols(symbols))),
        "## C++",
        "The native library is built with headers that torch ships and does not promise, for one minor version of "
        "torch. If it does not build for another version, calls are recorded in Python, and one line says so.",
        table(
            ["header", "symbols", "reason"],
            [
                [f"`{header.path}`", ", ".join(f"`{symbol}`" for symbol in header.symbols), header.reason]
                for header in HEADERS
            ],
        ),
        "These functions are looked up in torch's libraries. Without them, operations on CUDA devices are recorded in "
        "Python.",
        table(
            ["function", "reason"],
            [[f"`{function.signature}`", function.reason] for function in FUNCTIONS],
        ),
    )


def _symbols(symbols: Iterable[TorchSymbol]) -> str:
    return table(
        ["symbol", "reason", "without it", "torch"],
        [
            [
                f"`{symbol.path}`" + (" (of instances)" if symbol.of_instances else ""),
                symbol.reason,
                f"{symbol.without}.{_REPORTED[symbol.loss]}",
                _versions(symbol),
            ]
            for symbol in symbols
        ],
    )


def _versions(symbol: TorchSymbol) -> str:
    versions = f"{symbol.since} to {symbol.until}" if symbol.until else f"from {symbol.since}"
    return f"{versions}, {symbol.builds} builds" if symbol.builds else re.sub(r"^from 2\.8$", "all", versions)
