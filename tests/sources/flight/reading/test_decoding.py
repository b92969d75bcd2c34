"""Decoding: what a dump's dictionaries hold is checked part by part, and invalid parts are left out."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_torchdist.sources.flight.dump import EntryState, GroupStatus
from otel_torchdist.sources.flight.reading.decoding import DumpError, decode
from tests.sources.flight.made_dumps import Document, call, document
from tests.sources.flight.reading.test_pickles import plain

HEALTHY = document([call(1), call(2, state="scheduled", timeout_ms=None)], {"0": range(4)})


def of_pickle(dump: Any) -> Any:
    """What a pickle is decoded to."""
    return decode(pickle.dumps(dump, 2), 3, "dump")


@pytest.mark.parametrize("version", ["2.3", "2.4", "2.7", "2.9", "2.10", "2.11"])
def test_versions(version: str) -> None:
    """Versions are numbers, not text: 2.10 is newer than 2.9, and a still newer one is read."""
    found = of_pickle({**HEALTHY, "version": version})
    assert found.dump.version == tuple(map(int, version.split(".")))
    assert (found.bad_parts, len(found.dump.entries), found.dump.rank) == (0, 2, 3)


@pytest.mark.parametrize("version", ["2.2", "1.10", "3.0"])
def test_other_formats(version: str) -> None:
    """Formats whose fields mean something else are refused by their number."""
    with pytest.raises(DumpError, match=rf"its format is {version}, which is not supported"):
        of_pickle({**HEALTHY, "version": version})


def test_optional_keys() -> None:
    """Old formats have neither threads, timeouts nor states of groups, and none of it is required."""
    optional = ("thread_name", "thread_id", "timeout_ms", "op_id", "retired", "frames", "pg_id")
    entries = [{key: value for key, value in call(1).items() if key not in optional} | {"record_id": 0}]
    [entry] = of_pickle({"version": "2.3", "entries": entries}).dump.entries
    assert (entry.timeout_ms, entry.thread, entry.frames, entry.retired) == (None, "", (), False)


def test_json_twin() -> None:
    """JSON has 0 for no time, counters as text, and no list of entries where there are none."""
    dump = {
        **HEALTHY,
        "comm_lib_version": "2.29.1",
        "pg_status": {"0": {"last_enqueued_collective": "7", "last_completed_collective": "-1"}},
        "entries": [{**call(1, state="scheduled"), "record_id": 0, "time_discovered_completed_ns": 0}],
    }
    found = decode(json.dumps(dump).encode(), 0, "dump").dump
    assert found.statuses == {0: GroupStatus(7, -1, -1)}
    assert (found.entries[0].completed_ns, found.entries[0].state) == (None, EntryState.SCHEDULED)
    assert found.library_version == "2.29.1"
    del dump["entries"]
    assert decode(json.dumps(dump).encode(), 0, "dump").dump.entries == ()


@pytest.mark.parametrize(
    ("ranks", "members"),
    [("[0, 1, 2]", (0, 1, 2)), ("0,1,2", (0, 1, 2)), ("[]", ()), ("", ()), ("[0, 9999999]", ()), ("range(3)", ())],
)
def test_members(ranks: str, members: tuple[int, ...]) -> None:
    """Members are text, in the form of torch or of torchcomms; any other text is none, and never evaluated."""
    found = of_pickle({**HEALTHY, "pg_config": {"0": {"name": "0", "desc": "", "ranks": ranks}}})
    assert found.dump.groups["0"].ranks == members


@pytest.mark.parametrize(
    "change",
    [
        {"record_id": -1}, {"record_id": True}, {"record_id": 1 << 70}, {"collective_seq_id": "1"}, {"state": "stuck"},
        {"process_group": "0"}, {"process_group": ("0",)}, {"input_sizes": [4]}, {"input_sizes": [[-1]]},
        {"input_dtypes": "Float"}, {"time_created_ns": None}, {"frames": [1]}, {"is_p2p": None}, {"timeout_ms": "x"},
        {"profiling_name": None}, {"duration_ms": "fast"}, {"retired": 1},
    ],
    ids=repr,
)  # fmt: skip
def test_bad_entry(change: Document) -> None:
    """An entry with a part of another type is left out and counted, with the reason; the others are used."""
    first, second = HEALTHY["entries"]
    found = of_pickle({**HEALTHY, "entries": [first, {**second, **change}]})
    assert (found.bad_parts, len(found.dump.entries)) == (1, 1)
    assert found.first_fault.startswith("entry 1: ")


def test_bad_parts() -> None:
    """Groups and states of the wrong type are left out and counted."""
    found = of_pickle({**HEALTHY, "pg_config": {"0": [], 1: {}}, "pg_status": {"0": 7, "x": {}, "9" * 99: {}}})
    assert (found.bad_parts, dict(found.dump.groups), dict(found.dump.statuses)) == (2, {}, {})
    assert found.first_fault.startswith("group '0': ")


def test_entry_twice() -> None:
    """A record that is there twice counts once."""
    first, second = HEALTHY["entries"]
    found = of_pickle({**HEALTHY, "entries": [second, first, first]})
    assert (found.bad_parts, [one.record_id for one in found.dump.entries]) == (1, [0, 1])


def test_unprintable_names() -> None:
    """Names cannot control a terminal."""
    entry = {**call(1, "nccl:\x1b[31mred"), "record_id": 0, "process_group": ("\u202e0", "")}
    [found] = of_pickle({**HEALTHY, "entries": [entry]}).dump.entries
    assert (found.profiling_name, found.group) == (r"nccl:\x1b[31mred", r"\u202e0")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "it is empty"),
        (b"hello", "neither a pickle nor JSON"),
        (b"{", "damaged"),
        (b"{}", "not a dump of a flight recorder"),
        (b'{"version": 2.1, "entries": []}', "not a dump of a flight recorder"),
        (b'{"version": "2.10", "entries": {}}', "its entries are not a list"),
        (b'{"a":' * 100_000, "damaged"),
        (b"{" + b"[" * 9_000_000, "too many objects"),
        (b'{"version": "2.10", "entries": [' + b"9" * 5_000 + b"]}", "damaged"),
        (pickle.dumps([1, 2], 2), "not a dump of a flight recorder"),
    ],
)
def test_not_a_dump(content: bytes, reason: str) -> None:
    """Anything else is refused with the reason."""
    with pytest.raises(DumpError, match=reason):
        decode(content, 0, "dump")


@given(plain, st.sampled_from(["pickle", "json"]))
def test_any_content(value: Any, kind: str) -> None:
    """A dump with anything in its keys is decoded or refused, and leaves out invalid parts."""
    dump = {"version": "2.9", "pg_config": {"0": value}, "pg_status": {"0": value}, "entries": [value, *call(1)]}
    for one in (dump, {**dump, "entries": value}, {**dump, "pg_config": value, "pg_status": value}):
        try:
            found = decode(pickle.dumps(one, 2) if kind == "pickle" else json.dumps(one).encode(), 0, "dump")
        except DumpError:
            continue
        assert not found.dump.entries


def test_shared_parts() -> None:
    """A small file whose entries share large parts, or are all the same, is refused: each would be decoded anew."""
    shapes = [[1] * 8] * 16_000
    entries = [{**call(1), "record_id": nth, "input_sizes": shapes} for nth in range(1_000)]
    same = [HEALTHY["entries"][0]] * 1_100_000
    for many in (entries, same):
        with pytest.raises(DumpError, match="too many objects"):
            of_pickle({**HEALTHY, "entries": many})


_KEYS = st.sampled_from([*call(1), "record_id", "frames"])


@given(st.dictionaries(_KEYS, plain, max_size=3))
def test_any_entry(change: Document) -> None:
    """An entry with any values in some of its fields is used or left out."""
    first, second = HEALTHY["entries"]
    found = of_pickle({**HEALTHY, "entries": [first, {**second, **change}]})
    assert 1 <= len(found.dump.entries) <= 2
