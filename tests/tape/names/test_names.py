"""The dictionary: names come back as they were, and their number is bounded."""

from __future__ import annotations

import dataclasses
import resource
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from otel_torchdist.model.names import (
    MAX_DIMENSIONS,
    MAX_FRAMES,
    MAX_NAMES,
    MAX_TEXT,
    OTHER,
    SPARE_OF_CALL_SITES,
    SPARE_OF_GROUPS,
    SPARE_OF_SHAPES,
    CallerName,
    CallPathName,
    CallSiteName,
    GroupName,
    LabelKind,
    LabelName,
    Name,
    ParameterNames,
    RaisedName,
    SignatureName,
)
from otel_torchdist.model.text import readable
from otel_torchdist.tape.layout import MAIN_CALLER, MAX_CALLERS
from otel_torchdist.tape.names.reader import NamesReader
from otel_torchdist.tape.names.writer import NamesWriter
from otel_torchdist.tape.reading.reader import TapeReader
from tests.support.tapes.tapes import new_writer

_TEXT = st.text(max_size=40)
_SIZES = st.integers(0, 2**53)
_NAMES = st.one_of(
    st.text(max_size=MAX_TEXT),
    st.builds(CallSiteName, function=_TEXT, file=_TEXT, line=st.integers(0, 2**31)),
    st.builds(
        GroupName,
        name=_TEXT,
        description=_TEXT,
        ranks=st.lists(st.integers(0, 2**31), max_size=9).map(tuple),
        nth=st.integers(0, 2**31),
        backend=_TEXT,
        aligned=st.booleans(),
        dimensions=st.lists(_TEXT, max_size=MAX_DIMENSIONS).map(tuple),
    ),
    st.builds(
        LabelName,
        kind=st.sampled_from(LabelKind),
        unit=_TEXT,
        stage=st.integers(-1, 2**31),
        direction=st.sampled_from(["", "fwd", "bwd"]),
    ),
    st.builds(
        SignatureName,
        operation=_TEXT,
        reduce_op=_TEXT,
        shapes=st.lists(st.lists(_SIZES, max_size=4).map(tuple), max_size=8).map(tuple),
        dtypes=st.lists(_TEXT, max_size=8).map(tuple),
        device=_TEXT,
        tensors=st.integers(0, 2**31),
    ),
    st.builds(
        CallPathName,
        call_site=st.integers(1, MAX_NAMES),
        frames=st.lists(st.integers(1, MAX_NAMES), max_size=MAX_FRAMES).map(tuple),
        varies=st.booleans(),
    ),
    st.builds(CallerName, number=st.integers(MAIN_CALLER + 1, MAX_CALLERS), function=_TEXT),
    st.builds(RaisedName, type=_TEXT, message=_TEXT, function=_TEXT, file=_TEXT, line=st.integers(0, 2**31)),
    st.builds(ParameterNames, names=st.lists(_TEXT, max_size=9).map(tuple)),
)


def as_shown(value: Any) -> Any:
    """Return a name, or a part of it, as it is read back: with unprintable letters escaped."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return dataclasses.replace(value, **{name: as_shown(part) for name, part in parts.items()})
    if isinstance(value, tuple):
        return tuple(map(as_shown, value))
    return readable(value) if isinstance(value, str) else value


LOOK_UP: dict[type, Callable[[NamesReader, int], Name | None]] = {
    str: NamesReader.text,
    GroupName: NamesReader.group,
    SignatureName: NamesReader.signature,
    CallSiteName: NamesReader.call_site,
    LabelName: NamesReader.label_name,
    RaisedName: NamesReader.raised,
    ParameterNames: lambda names, identity: ParameterNames(names.parameters(identity)),
}
"""How each kind of name is found; `call_path` and `caller` return the newest of a call site, or of a number."""


@pytest.fixture
def path(memory: Path) -> Path:
    """Where a dictionary is."""
    return memory / "some.names"


@pytest.fixture
def writer(path: Path) -> Iterator[NamesWriter]:
    """The writer of a dictionary, which `reader` follows."""
    writer = NamesWriter(path)
    yield writer
    writer.close()


@pytest.fixture
def reader(path: Path, writer: NamesWriter) -> NamesReader:
    """The reader of that dictionary."""
    return NamesReader(path)


@given(given_names=st.lists(_NAMES, max_size=20))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None)
def test_round_trip(memory: Path, given_names: list[Name]) -> None:
    """Any names, in any order and repeated: one id each, and each as it was for a reader that follows."""
    path = memory / "some.names"
    path.unlink(missing_ok=True)
    writer, reader = NamesWriter(path), NamesReader(path)
    ids: dict[Name, int] = {}
    for name in given_names:
        identity = writer.intern(name)
        assert identity == ids.setdefault(name, identity) != OTHER
        found = LOOK_UP.get(type(name), NamesReader.get)(reader, identity)
        assert found == (readable(name, MAX_TEXT) if isinstance(name, str) else as_shown(name))
    assert len(set(ids.values())) == len(ids)
    assert reader.corrupt_lines == writer.dropped == 0
    writer.close()


def test_wrong_kind_is_unknown(writer: NamesWriter, reader: NamesReader) -> None:
    """An id is only found as a name of its kind, and `other` is none."""
    identity = writer.intern("label")
    assert reader.text(identity) == "label"
    assert (reader.group(identity), reader.signature(identity), reader.call_site(identity)) == (None, None, None)
    assert reader.text(OTHER) is None
    assert reader.text(99) is None


def test_long_text_is_cut(writer: NamesWriter, reader: NamesReader) -> None:
    """A label has a bound too."""
    assert reader.text(writer.intern("x" * 10_000)) == "x" * MAX_TEXT


def test_bound_on_the_number(memory: Path) -> None:
    """After 8,192 names the next are `other` and counted in the tape; the old ones stay."""
    writer = new_writer(memory)
    reader = TapeReader.of_writer(writer)
    ids = [writer.names.intern(f"name {n}") for n in range(MAX_NAMES)]
    assert MAX_NAMES == 8192
    assert len(set(ids)) == MAX_NAMES
    assert OTHER not in ids
    assert [writer.names.intern(f"one too many {n}") for n in range(3)] == [OTHER] * 3
    assert writer.names.intern("name 17") == ids[17]
    writer.beat()
    assert reader.status().names_dropped == 3
    assert reader.names.text(ids[-1]) == f"name {MAX_NAMES - 1}"


def test_shapes_leave_room(memory: Path) -> None:
    """Shapes that never repeat end at three quarters, groups a little later: a failure always has a name."""
    writer = new_writer(memory)
    names = writer.names
    signatures = [SignatureName("all_to_all_single", "", ((n,),), ("float32",), "cpu", 1) for n in range(MAX_NAMES)]
    ids = [names.intern_optional(signature, SPARE_OF_SHAPES) for signature in signatures]
    assert ids.index(OTHER) == MAX_NAMES - SPARE_OF_SHAPES
    assert names.is_scarce
    assert names.dropped == 0  # they can be recorded without
    groups = [GroupName(f"{n}", "", (0,), n, "gloo", True) for n in range(MAX_NAMES)]
    assert [names.intern(group, SPARE_OF_GROUPS) for group in groups].index(OTHER) == SPARE_OF_SHAPES - SPARE_OF_GROUPS
    assert names.dropped == MAX_NAMES - (SPARE_OF_SHAPES - SPARE_OF_GROUPS)
    assert OTHER not in [names.intern(CallSiteName("f", "a.py", line), SPARE_OF_CALL_SITES) for line in range(200)]
    assert names.intern("RuntimeError") != OTHER
    assert names.intern_optional(signatures[7], SPARE_OF_SHAPES) == ids[7]


def test_bound_on_the_bytes(memory: Path) -> None:
    """Long names are limited by the space that they take."""
    path = memory / "some.names"
    writer = NamesWriter(path, 1000)
    ids = [writer.intern(f"{n}" * 400) for n in range(5)]
    assert [identity == OTHER for identity in ids] == [False, False, True, True, True]
    assert writer.intern("short") != OTHER
    assert writer.dropped == 3
    assert path.stat().st_size <= 1000
    writer.close()


def test_no_space(path: Path, writer: NamesWriter, reader: NamesReader) -> None:
    """A half-written name is taken back: it is `other`, and later ones can be read."""
    first = writer.intern("first")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 20, limits[1]))
    try:
        assert writer.intern("does not fit") == OTHER
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    second = writer.intern("second")
    assert (reader.text(first), reader.text(second)) == ("first", "second")
    assert (writer.dropped, reader.corrupt_lines) == (1, 0)


def test_closed(path: Path, writer: NamesWriter) -> None:
    """After the end a new name is `other`, and nothing is written to a descriptor that may belong to another file."""
    known = writer.intern("known")
    writer.close()
    assert (writer.intern("known"), writer.intern("new")) == (known, OTHER)
    assert path.read_bytes().count(b"\n") == 1


def test_replaced(writer: NamesWriter, reader: NamesReader) -> None:
    """A group that a device mesh takes keeps its id; readers see its dimensions with the next name that they need."""
    before = GroupName("0", "default_pg", (0, 1), 0, "gloo", True)
    after = dataclasses.replace(before, dimensions=("dp",))
    group, other = writer.intern(before), writer.intern("other")
    assert reader.group(group) == before
    writer.replace(group, after)
    new = writer.intern("new")
    assert (reader.text(new), reader.group(group), reader.renamed) == ("new", after, 1)
    assert len({group, other, new}) == 3
    assert before.key == after.key


def test_key_of_a_group() -> None:
    """All members compute one key, whatever they call the group; other members or a later group have another."""
    group = GroupName("7", "mesh_dp", (0, 2, 4), 0, "gloo", True)
    same = GroupName("9", "", (0, 2, 4), 0, "nccl", False)
    others = (
        GroupName("7", "mesh_dp", (0, 2, 5), 0, "gloo", True),
        GroupName("7", "mesh_dp", (0, 2, 4), 1, "gloo", True),
    )
    assert group.key == same.key
    assert len(group.key) == 8
    assert group.key not in {other.key for other in others}


def test_type_of_an_exception(writer: NamesWriter, reader: NamesReader) -> None:
    """Whoever asks for an exception's type alone gets it, whether more is known of it or not."""
    raised = RaisedName("ValueError", "loss is nan", "step", "/home/ada/train.py", 57)
    alone, known = writer.intern("KeyError"), writer.intern(raised)
    assert (reader.text(alone), reader.raised(alone)) == ("KeyError", None)
    assert (reader.text(known), reader.raised(known)) == ("ValueError", raised)
