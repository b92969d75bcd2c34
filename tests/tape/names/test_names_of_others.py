"""Dictionaries that others may have written: names of other types are unknown, and no name can forge a line."""

from __future__ import annotations

import json
import logging
import os
import zlib
from pathlib import Path

import pytest

from otel_torchdist.model.names import CallSiteName
from otel_torchdist.tape.names.reader import NamesReader


def line(body: object) -> bytes:
    """A line of a dictionary, under a checksum that is right."""
    text = json.dumps(body).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


def dictionary(path: Path, *bodies: object) -> NamesReader:
    """A reader of a dictionary with these lines."""
    path.write_bytes(b"".join(map(line, bodies)))
    return NamesReader(path)


GROUP = {"name": "0", "description": "", "ranks": [0, 1], "nth": 0, "backend": "gloo", "aligned": True}
SIGNATURE = {"operation": "a", "reduce_op": "", "shapes": [[1]], "dtypes": ["f"], "device": "cpu", "tensors": 1}
SITE = {"function": "f", "file": "g", "line": 1}


@pytest.mark.parametrize(
    "body",
    [
        {"id": 1, "group": GROUP | {"ranks": None}},
        {"id": 1, "group": GROUP | {"ranks": ["0"]}},
        {"id": 1, "group": GROUP | {"ranks": [10**400]}},
        {"id": 1, "group": GROUP | {"nth": -1}},
        {"id": 1, "group": GROUP | {"description": 7}},
        {"id": 1, "signature": SIGNATURE | {"shapes": [1]}},
        {"id": 1, "signature": SIGNATURE | {"operation": None}},
        {"id": 1, "call_site": SITE | {"line": "1"}},
        {"id": 1, "call_site": {"function": "f"}},
        {"id": 1, "text": {}},
        {"id": 1 << 40, "text": "a"},
        {"id": True, "text": "a"},
        [1],
    ],
)
def test_names_of_other_types(memory: Path, body: object) -> None:
    """A name that is not of our types, under a right checksum, is unknown; no reader fails on it."""
    names = dictionary(memory / "some.names", body, {"id": 2, "text": "sound"})
    assert names.text(2) == "sound"
    assert names.group(1) is names.signature(1) is names.call_site(1) is names.text(1) is None
    assert names.corrupt_lines == 1


def test_names_that_would_forge(memory: Path) -> None:
    """Each string of a name can be printed; a path that is not UTF-8 is known, with its bytes escaped."""
    names = dictionary(
        memory / "some.names",
        {"id": 1, "call_site": {"function": "\x1b[2J", "file": "/home/\udcff.py", "line": 3}},
        {"id": 2, "text": "Error\nrank 3 is dead"},
        {"id": 3, "group": GROUP | {"description": "\u202egroup"}},
    )
    assert names.call_site(1) == CallSiteName(r"\x1b[2J", r"/home/\udcff.py", 3)
    assert names.text(2) == r"Error\nrank 3 is dead"
    group = names.group(3)
    assert group is not None and group.description == r"\u202egroup"


def test_dictionary_that_never_ends_a_line(memory: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is not read again and again: the bytes that are read of one dictionary are bounded."""
    path = memory / "some.names"
    path.write_bytes(b"x" * (3 << 20))
    names = NamesReader(path)
    for _ in range(8):
        names.refresh()
        with path.open("ab") as file:
            file.write(b"x")
    with path.open("ab") as file:
        file.write(b"\n" + line({"id": 1, "text": "too late"}))
    assert names.text(1) is None
    assert not caplog.records


def test_pipe_in_place_of_a_dictionary(memory: Path, caplog: pytest.LogCaptureFixture) -> None:
    """No reader waits for its other end; one warning names it, however often it is checked."""
    caplog.set_level(logging.WARNING)
    path = memory / "some.names"
    os.mkfifo(path)
    names = NamesReader(path)
    for identity in range(1, 5):
        path.touch()
        assert names.text(identity) is None
    assert len(caplog.records) <= 1
