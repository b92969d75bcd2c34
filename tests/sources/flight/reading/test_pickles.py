"""Pickles that anyone may have written: plain data is read, and nothing else does anything."""

from __future__ import annotations

import os
import pickle
import pickletools
import resource
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_torchdist.sources.flight.reading.pickles import PickleError, load

HEAD: Final = b"\x80\x02"
_leaves = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 70), 1 << 70)
    | st.floats(allow_nan=False)
    | st.text(max_size=400)
    | st.text(alphabet="ab", min_size=120, max_size=300)
)
plain = st.recursive(
    _leaves,
    lambda inside: st.lists(inside) | st.dictionaries(st.text(max_size=9), inside) | st.tuples(inside, inside),
    max_leaves=60,
)


class Called:
    """Something that a pickle would call."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("/nonexistent/pickled",)


@given(plain, st.integers(2, 5))
def test_plain_data(value: Any, protocol: int) -> None:
    """Whatever plain data `pickle.dumps` writes is read as it was."""
    assert load(pickle.dumps(value, protocol)) == value


@given(st.binary(max_size=400))
def test_any_bytes(content: bytes) -> None:
    """Any bytes behind a pickle's head are read or refused, and nothing else happens."""
    for whole in (HEAD + content + b".", content):
        try:
            load(whole)
        except PickleError as error:
            assert str(error)


@given(plain, st.data())
def test_damage(value: Any, data: st.DataObject) -> None:
    """A pickle with some bytes changed, or cut off, is read or refused."""
    content = bytearray(pickle.dumps(value, 2))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    for whole in (bytes(content), bytes(content[: data.draw(st.integers(0, len(content)))])):
        try:
            load(whole)
        except PickleError as error:
            assert str(error)


_PLAIN_OPCODES: Final = frozenset(
    {"APPEND", "APPENDS", "BINFLOAT", "BINGET", "BININT", "BININT1", "BININT2", "BINPUT", "BINUNICODE", "EMPTY_DICT"}
    | {"EMPTY_LIST", "EMPTY_TUPLE", "FRAME", "LONG1", "LONG_BINGET", "LONG_BINPUT", "MARK", "MEMOIZE", "NEWFALSE"}
    | {"NEWTRUE", "NONE", "POP", "PROTO", "SETITEM", "SETITEMS", "SHORT_BINUNICODE", "STOP", "TUPLE", "TUPLE1"}
    | {"TUPLE2", "TUPLE3"}
)


@pytest.mark.parametrize("opcode", [one for one in pickletools.opcodes if one.name not in _PLAIN_OPCODES])
def test_all_other_opcodes(opcode: Any) -> None:
    """Every opcode that plain data does not need is refused before anything is unpickled."""
    argument = b"\x00" * 8
    with pytest.raises(PickleError, match="something other than plain data"):
        load(HEAD + b"N" + opcode.code.encode("latin-1") + argument + b".")


@pytest.mark.parametrize("protocol", range(2, 6))
def test_calls(protocol: int) -> None:
    """A pickle that would call a function calls nothing."""
    with pytest.raises(PickleError, match="something other than plain data"):
        load(pickle.dumps({"version": "2.10", "entries": [Called()]}, protocol))


def test_text_protocols() -> None:
    """Protocols 0 and 1, which no recorder writes, are refused: they have opcodes of any length."""
    with pytest.raises(PickleError, match="protocol 2 to 5"):
        load(pickle.dumps({"version": "2.10"}, 0))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (HEAD + b"Nr\xff\xff\xff\x7f.", "refers to an object"),
        (HEAD + b"]" * 9_000_000 + b".", "too many objects"),
        (HEAD + b"}" + b")" + b"\x85" * 2_000_000 + b"Ns.", "too many tuples"),
        (HEAD + b"X\xff\xff\xff\x7f.", "truncated"),
        (HEAD + b"X\x05\x00\x00\x00ab.", "truncated"),
        (HEAD + b"X\x05", "truncated"),
        (b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x7f.", "plain data"),
        (b"\x80\x05\x96\xff\xff\xff\xff\xff\xff\xff\x7f.", "plain data"),
        (HEAD + b"\x8b\xff\xff\xff\x7f.", "plain data"),
        (HEAD + b".", "damaged"),
        (b"", "not a pickle"),
    ],
    ids=[
        "memo",
        "lists",
        "tuples",
        "length",
        "cut",
        "cut in its length",
        "text",
        "bytearray",
        "number",
        "nothing",
        "empty",
    ],
)
def test_bombs(content: bytes, reason: str) -> None:
    """What would take gigabytes of memory is refused, and takes none."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(PickleError, match=reason):
        load(content)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 256 << 10  # KiB


@pytest.mark.parametrize("depth", [9_000, 300_000])
def test_deep_keys(depth: int) -> None:
    """The hash of nested tuples takes a piece of the C stack for each of them, and there is enough."""
    found = load(HEAD + b"}" + b")" + b"\x85" * depth + b"Ns.")
    assert len(found) == 1


def test_shared_lists() -> None:
    """Lists that contain each other twice are a small object, of a size of 2^64 only for who walks it."""
    content = HEAD + b"]" + b"".join(b"q%c" % nth + b"]" + b"(h%ch%ce" % (nth, nth) for nth in range(64)) + b"."
    assert load(content)


def test_deep_lists() -> None:
    """A list in a list, a hundred thousand times, is read and freed."""
    assert load(HEAD + b"]" * 100_000 + b"a" * 99_999 + b".")
