"""A tape of this process, and a reader that follows it from its first record."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from otel_torchdist.tape.reading.reader import TapeReader
from otel_torchdist.tape.writer import TapeWriter
from tests.support.tapes.tapes import new_writer


@pytest.fixture
def writer(memory: Path) -> Iterator[TapeWriter]:
    """A tape with a ring of 64 records."""
    writer = new_writer(memory, capacity=64)
    yield writer
    writer.close()


@pytest.fixture
def small_writer(memory: Path) -> Iterator[TapeWriter]:
    """A tape with a ring of 8 records, the fewest there can be."""
    writer = new_writer(memory, capacity=8)
    yield writer
    writer.close()


@pytest.fixture
def reader(writer: TapeWriter) -> TapeReader:
    """A reader of `writer`'s tape, attached before its first record."""
    return TapeReader.of_writer(writer)
