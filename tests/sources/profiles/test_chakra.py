"""Execution traces in Chakra's own format."""

from __future__ import annotations

import dataclasses
import gzip
from pathlib import Path
from typing import Any

import pytest

from otel_torchdist.model.text import readable
from otel_torchdist.sources.profiles.profile import RankProfile
from otel_torchdist.sources.profiles.reading.reader import FoundProfiles, read_profiles
from tests.sources.profiles.made_chakra import converted, write, written
from tests.sources.profiles.reading_traces import read
from tests.sources.profiles.test_execution_traces import ExecutionTrace

CUT_OFF = "its end is missing or damaged: it is read up to that point"


def trace() -> ExecutionTrace:
    """Two steps of rank 3."""
    found = ExecutionTrace("1.1.1-chakra.0.0.4")
    for step in (2, 3):
        found.step(step)
        found.call("allreduce", "1", 1, 0, 3, 2)
        found.call("wait", "1", 1, -1, -1, 1)
        found.call("barrier", "0", 3, 0, 1, 4)
    return found


def nodes() -> list[bytes]:
    """The same, converted."""
    return [converted(node) for node in trace().nodes]


def without_path(path: Path) -> RankProfile:
    """The only trace, wherever it lies."""
    [profile] = read(path).profiles
    return dataclasses.replace(profile, path="")


@pytest.mark.parametrize("name", ["job.3.et", "trace.et", "rank_3.et.gz"])
def test_converted_trace_shows_what_the_original_does(tmp_path: Path, name: str) -> None:
    """Groups, calls, shapes, types and steps; compressed or not, and whatever its name is."""
    trace().write(tmp_path / "original.json")
    content = written({"schema": "1.1.1-chakra.0.0.4", "pid": 7}, nodes())
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    original, converted_one = without_path(tmp_path / "original.json"), without_path(tmp_path / name)
    assert original.rank == 3 and len(original.calls) == 4
    assert converted_one.calls[0].arguments.shapes == ((4_096,),)
    # The converter drops the attributes: the number of elements is only there, and so is a barrier's type.
    bare = [
        call._replace(arguments=call.arguments._replace(elements=None, dtype="bfloat16" if has_data else ""))
        for call, has_data in ((call, bool(call.arguments.shapes)) for call in original.calls)
    ]
    assert converted_one == dataclasses.replace(original, calls=tuple(bare))


@pytest.mark.parametrize("share", [0.3, 0.7, 0.99])
def test_truncated(tmp_path: Path, share: float) -> None:
    """It is read up to the last whole node."""
    content = written({}, nodes())
    (tmp_path / "t.3.et").write_bytes(content[: int(share * len(content))])
    found = read_profiles([tmp_path])
    assert [note.rpartition("et: ")[2] for note in found.notes] == [CUT_OFF]
    assert len(found.profiles) == 1


HOSTILE = (
    *("[" * 100_000, "-" * 100_000 + "1", "1+" * 100_000 + "1", "['a", "'\\'" * 60_000),
    *("__import__('os').system('true')", "[1" + ",1" * (1 << 18) + "]"),
)


@pytest.mark.parametrize("values", HOSTILE, ids=[text[:12] for text in HOSTILE])
def test_hostile_inputs(tmp_path: Path, values: str) -> None:
    """What is no list of constants, too deep or too long is left out, and the rest is read; nothing is executed."""
    bad = {"id": 90, "name": "record_param_comms", "inputs": {"values": values, "shapes": [], "types": []}}
    write(tmp_path / "t.3.et", {}, [*nodes(), converted(bad)])
    found = read_profiles([tmp_path])
    [note] = found.notes
    assert "1 part is invalid and left out" in note
    assert [len(profile.calls) for profile in found.profiles] == [4]


def test_texts_of_python(tmp_path: Path) -> None:
    """Quotes, escapes, words and numbers of Python's own notation come through."""
    names = ["it's", 'say "x"', 'it\'s "x"', "a\\b", "tab\tline\n", "ü\x00\U0001f600", "True, None", "nan"]

    def values_of(name: str) -> list[Any]:
        return [[1, False], [name, "x"], 0, "allreduce", [None, True, float("nan"), -1.5e30], [], 2]

    found = [
        converted({"id": at, "name": "record_param_comms", "inputs": {"values": values, "shapes": [], "types": []}})
        for at, values in enumerate(map(values_of, names), 3)
    ]
    write(tmp_path / "t.3.et", {}, found)
    [profile] = read(tmp_path).profiles
    assert [call.arguments.group for call in profile.calls] == [readable(name) for name in names]


def test_trace_for_a_simulator(tmp_path: Path) -> None:
    """A trace that was not made from PyTorch's has no calls that could be read, and that is reported."""
    node = {"id": 3, "name": "AllReduce", "inputs": {"values": [], "shapes": [], "types": []}}
    write(tmp_path / "compute.et", {}, [converted(node)])
    assert [note.rpartition("et: ")[2] for note in read_profiles([tmp_path]).notes] == [
        "neither its name nor its calls state a rank"
    ]


def test_cut_off_in_its_head(tmp_path: Path) -> None:
    """Then there is nothing to read, which is reported."""
    (tmp_path / "t.3.et").write_bytes(written({"schema": "1.1.1"}, nodes())[:12])
    found = read_profiles([tmp_path])
    assert [len(profile.calls) for profile in found.profiles] == [0]
    assert [note.rpartition("et: ")[2] for note in found.notes] == [CUT_OFF]


def test_other_files_are_left_alone(tmp_path: Path) -> None:
    """Neither executables nor images nor logs are taken for traces."""
    binary = {"a.et": b"\x7fELF\x02\x01", "b.et": b"\x89PNG\r\n\x1a\n"}
    for name, start in {**binary, "c.et": b"\n\n\n text", "d.log": b"x\n 12 lines"}.items():
        (tmp_path / name).write_bytes(start + bytes(100))
    assert read_profiles([tmp_path]) == FoundProfiles((), ())
