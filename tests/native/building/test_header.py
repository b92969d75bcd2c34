"""The layout of the tape, for the library in C++."""

from __future__ import annotations

from otel_torchdist.native.header import PATH, header


def test_header_is_current() -> None:
    """What is compiled is the layout of `tape.layout`; `python -m otel_torchdist.native.header` writes it."""
    assert PATH.read_text() == header()
