"""Logs of any size, encoding and damage."""

from __future__ import annotations

import gzip
import io
import re
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_torchdist.sources.evidence.facts import OperationTimeout, ProcessExit, ProcessStacks
from otel_torchdist.sources.evidence.findings import findings_of
from otel_torchdist.sources.evidence.log import BLOCK_BYTES, MARKERS, read_log
from otel_torchdist.sources.evidence.statements import StatementKind
from tests.sources.evidence import quoted
from tests.sources.evidence.reading import DATA, read

LINES = [*quoted.timed_out(0, 7), *quoted.timed_out(1, 7), quoted.asked_for_dump(2, 6, by=0)]
TEXT = "\n".join(["starting", *LINES, "done", ""])


ENCODED = {
    "utf-8": TEXT.encode(),
    "crlf": TEXT.replace("\n", "\r\n").encode(),
    "utf-8-bom": TEXT.encode("utf-8-sig"),
    "utf-16": TEXT.encode("utf-16"),
    "utf-16-be": b"\xfe\xff" + TEXT.encode("utf-16-be"),
    "gzip": gzip.compress(TEXT.encode()),
    "latin-1": ("grün " + TEXT).encode("latin-1"),
    "binary": b"\x00\xff\xfe" + TEXT.encode(),
    "colors": re.sub(r"(?m)^", "\x1b[31m", TEXT).encode(),
    "no last line feed": TEXT.rstrip("\n").encode(),
}


@pytest.mark.parametrize("content", ENCODED.values(), ids=ENCODED)
def test_encodings(tmp_path: Path, content: bytes) -> None:
    """The same is read from every encoding, with the numbers of the lines."""
    found = read(tmp_path, content)
    assert not found.warnings
    assert [(one.kind, one.rank) for one in found.statements] == [
        *[
            (kind, rank)
            for rank in (0, 1)
            for kind in (StatementKind.TIMED_OUT, StatementKind.PROGRESS, StatementKind.CALLED)
        ],
        (StatementKind.PROGRESS, 2),
    ]
    numbers = {
        kind: 2 + place
        for place, kind in enumerate((StatementKind.TIMED_OUT, StatementKind.PROGRESS, StatementKind.CALLED))
    }
    assert [one.source.line for one in found.statements if one.rank == 0] == [*numbers.values()]


def test_cut_off_gzip(tmp_path: Path) -> None:
    """What stands before the damage counts, and the damage is reported."""
    noise = b"".join(b"iteration %d\n" % n for n in range(100_000))
    content = gzip.compress(TEXT.encode() + noise)
    found = read(tmp_path, content[: len(content) // 2])
    assert len(found.statements) == 7
    [warning] = found.warnings
    assert "read only up to the damaged part" in warning


class Short(io.BytesIO):
    """A file whose reads return a few bytes at most."""

    def __init__(self, content: bytes, most: int) -> None:
        super().__init__(content)
        self._most = most

    def read(self, size: int | None = -1, /) -> bytes:
        """Read fewer bytes than were asked for."""
        return super().read(self._most if size is None or size < 0 else min(size, self._most))


@pytest.mark.parametrize("size", [7, 64, 1000])
def test_blocks(size: int) -> None:
    """Lines and stacks that lie across the borders of blocks are read like others."""
    content = TEXT.encode()
    assert read_log(Short(content, size), "job.log") == read_log(io.BytesIO(content), "job.log")


def test_progress_bar_without_line_feeds(tmp_path: Path) -> None:
    """A message behind megabytes of carriage returns is found, and so is its rank."""
    bar = "Epoch 7: 300it [07:24,  1.48s/it, loss=4]\r" * 50_000
    found = read(tmp_path, bar + quoted.TORCH_2_5 + "\n")
    assert [(one.rank, one.source.line) for one in found.statements] == [(1, 1)]


@pytest.mark.thorough
def test_memory_is_bounded() -> None:
    """A log takes the memory of a few blocks, however long it is."""

    class Endless(io.RawIOBase):
        left = 40

        def read(self, size: int = -1) -> bytes:
            """Many megabytes, in blocks."""
            self.left -= 1
            return (b"iteration 12: loss 2.5\n" * (size // 23 + 1))[:size] if self.left > 0 else b""

    tracemalloc.start()
    try:
        statements, warnings = read_log(Endless(), "big.log")  # type: ignore[arg-type]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (statements, warnings) == ([], [])
    assert peak < 6 * BLOCK_BYTES


def test_repeats_are_counted(tmp_path: Path) -> None:
    """A message that is written again and again is kept once."""
    [one] = read(tmp_path, f"{quoted.TORCH_2_2}\n" * 1000).statements
    assert one.repeated == 999


def test_too_many_different_messages() -> None:
    """What does not fit is counted."""
    content = "\n".join(quoted.timed_out(rank, 5)[0] for rank in range(30)).encode()
    statements, [warning] = read_log(io.BytesIO(content), "job.log", max_kept=10)
    assert len(statements) == 10
    assert "20 messages are left out" in warning


def test_tracebacks_of_ranks_that_write_at_the_same_time(tmp_path: Path) -> None:
    """Interleaved lines are kept apart by what stands before them."""
    one = ["Traceback (most recent call last):", '  File "/a.py", line 1, in a', "    a()", "ValueError: of a"]
    other = ["Traceback (most recent call last):", '  File "/b.py", line 2, in b', "    b()", "KeyError: 'of b'"]
    mixed = [line for pair in zip(one, other, strict=True) for line in (f"[rank0]: {pair[0]}", f"[rank1]: {pair[1]}")]
    found = read(tmp_path, "\n".join(mixed)).statements
    assert {(one.rank, one.text) for one in found} == {(0, "ValueError: of a"), (1, "KeyError: 'of b'")}


def test_lines_behind_a_table_that_is_none(tmp_path: Path) -> None:
    """A heading of another program that reads like torchrun's hides nothing."""
    found = read(tmp_path, "\n".join(["Failures:", "  test_one", "done", quoted.TORCH_2_5]))
    assert [one.rank for one in found.statements] == [1]


def test_table_with_lines_of_others(tmp_path: Path) -> None:
    """Launchers of several nodes write at the same time; their labels keep them apart."""
    table = (DATA / "gloo_kill.log").read_text().splitlines()
    lines = [line for text in table for line in (f"0: {text}", "1: iteration 5")]
    ends = [one for one in read(tmp_path, "\n".join(lines)).statements if isinstance(one.fact, ProcessExit)]
    assert {
        (one.rank, one.fact.outcome) for one in ends if isinstance(one.fact, ProcessExit) and one.fact.is_first
    } == {(2, "SIGKILL")}


_TABLE = """
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : {other_time}
  host      : node
  rank      : 1 (local_rank: 1)
  exitcode  : {other_code} (pid: 12)
  error_file: {other_file}
  traceback : {other_error}
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-25_02:44:03
  host      : node
  rank      : 0 (local_rank: 0)
  exitcode  : 1 (pid: 11)
  error_file: /tmp/0/error.json
  traceback : Traceback (most recent call last):
    File "train.py", line 9, in main
  RuntimeError: [transport/tcp/pair.cc:537] {error}
============================================================
"""
_RAISED = 'Traceback (most recent call last):\n    File "train.py", line 7, in main\n  ValueError: loss is nan'
_OF_RANK_1 = {
    "other_time": "2026-11-25_02:44:03",
    "other_code": "1",
    "other_file": "/tmp/1/error.json",
    "other_error": _RAISED,
    "error": "Connection closed by peer [127.0.0.1]:33712",
}


@pytest.mark.parametrize(
    ("changed", "first"),
    [
        ({}, 1),
        ({"other_code": "-9", "other_file": "<N/A>", "other_error": "Signal 9 (SIGKILL) received by PID 12"}, 1),
        ({"other_time": "2026-11-25_02:44:04"}, 0),
        ({"error": "disk is full"}, 0),
        ({"other_code": "-15", "other_file": "<N/A>", "other_error": "Signal 15 (SIGTERM) received by PID 12"}, 0),
    ],
    ids=["same second", "killed", "later", "both by themselves", "asked to end"],
)
def test_the_launcher_lists_a_victim_first(tmp_path: Path, changed: dict[str, str], first: int) -> None:
    """Torchrun's times are whole seconds: of one second, the rank that has lost another one was not the first."""
    found = findings_of(read(tmp_path, _TABLE.format(**{**_OF_RANK_1, **changed})).statements)
    assert [one.ranks for one in found if one.is_first] == [(first,)]


def test_dump_of_all_threads(tmp_path: Path) -> None:
    """Faulthandler writes the newest thread first; the current one is that of interest, then the main thread."""
    dump = (
        "Timeout (0:00:05)!\n"
        'Thread 0x00007f02 (most recent call first):\n  File "/usr/lib/python3.11/threading.py", line 324 in wait\n\n'
        'Current thread 0x00007f01 (most recent call first):\n  File "/train.py", line 5 in step\n'
        '  File "/train.py", line 9 in <module>\n'
        "step 12\n"
    )
    [one] = read(tmp_path, dump).statements
    assert isinstance(one.fact, ProcessStacks)
    assert [len(thread.frames) for thread in one.fact.threads] == [2, 1]
    assert one.fact.threads[0].frames[0].function == "step"


@given(content=st.binary(max_size=2000))
def test_any_bytes(content: bytes) -> None:
    """No bytes make the reader fail."""
    read_log(io.BytesIO(content), "any")


_PIECES = st.sampled_from(
    [
        *(marker.decode() for marker in MARKERS),
        *LINES,
        *quoted.RAS_AHEAD.splitlines(),
        "Failures:",
        "Root Cause (first observed failure):",
        "  rank      : 1 (local_rank: 1)",
        "  exitcode  : -6 (pid: 1)  (SIGABRT)",
        "=" * 60,
        "Thread 0x1 (most recent call first):",
        'Current thread 0x1 (most recent call first):\n  File "a", line 1 in b',
        "Traceback (most recent call last):",
        "\r",
        "\n",
        "\x1b[",
        "[rank99999999999999]:",
        "9" * 400,
    ]
)


@given(pieces=st.lists(_PIECES | st.text(max_size=20), max_size=60))
def test_any_pieces(pieces: list[str]) -> None:
    """Nor do pieces of what it looks for, in any order."""
    statements, _ = read_log(io.BytesIO("".join(pieces).encode("utf-8", "replace")), "any")
    assert all(one.text.isprintable() for one in statements)
    assert all(one.fact.timeout_ms >= 0 for one in statements if isinstance(one.fact, OperationTimeout))
