"""`analyze --only calls` over dumps of PyTorch's flight recorder, and over folders of tapes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.sources.flight.made_dumps import Document, call, document, write, write_json
from tests.support.commands.asking import analyze
from tests.support.tapes.directories import memory_directory
from tests.support.tapes.fake_tape import FakeTape

MS = 1_000_000


def dump(lasted_ms: Sequence[float | None], ranks: int = 3) -> Document:
    """A dump of NCCL's recorder: an all_reduce of 1 MiB every 10 ms; one that did not end has no duration."""
    mebibyte: dict[str, Any] = {"input_sizes": [[1 << 18]], "output_sizes": [[1 << 18]]}
    mebibyte |= {"frames": [{"name": "train", "filename": "/home/ada/train.py", "line": 42}]}
    calls = [
        call(place, state="started", at_s=place / 100, **mebibyte)
        if lasted is None
        else call(place, at_s=place / 100, duration_ms=lasted, **mebibyte)
        for place, lasted in enumerate(lasted_ms, 1)
    ]
    return document(calls, {"0": range(ranks)})


@pytest.fixture
def dumps(tmp_path: Path) -> Path:
    """Dumps of three ranks, timed by their devices; rank 2 has not called what the others are in."""
    waits, late = dump([2.0, 4.0, 3.0, None]), dump([2.0, 4.0, 3.0])
    return write(tmp_path, {0: waits, 1: waits, 2: late})


def test_dumps(base: Path, dumps: Path) -> None:
    """Counts that differ come first; times are those of the device, and of unknown clocks nothing is split."""
    answer = analyze(base, dumps, "--json", "--by", "operation,group,size,site", only="calls")
    assert (answer.code, answer.err) == (0, "")
    found = answer.document["calls"]
    [row] = found["rows"]
    assert row["calls_by_rank"] == {"0": 4, "1": 4, "2": 3}
    assert (row["timed"], row["open"], row["median_ns"], row["p99_ns"]) == (9, 2, 3 * MS, 4 * MS)
    assert (row["size_class"], row["message_bytes"]) == ("1MiB", 11 << 20)
    assert row["call_site"] == {"function": "train", "file": "/home/ada/train.py", "line": 42}
    assert (row["split"], row["compared"], row["bandwidth"]["over"]) == (0, 0, "duration")
    assert row["bandwidth"]["algorithm_bytes_per_second"] == pytest.approx(9 * (1 << 20) / 0.027)
    assert row["bandwidth"]["bus_bytes_per_second"] == pytest.approx(9 * (1 << 20) / 0.027 * 4 / 3)
    [difference] = found["differences"]
    assert [(one["rank"], one["calls"]) for one in difference["counts"]] == [(0, 4), (1, 4), (2, 3)]
    text = analyze(base, dumps, only="calls")
    assert text.out.startswith(f"dumps of the flight recorder of 3 ranks\n{dumps}\n")
    assert text.has(r"  all_reduce in default_pg: rank 2 called it 3 times, ranks 0-1 4 times \(1 open\)")
    assert text.has(r" all_reduce default_pg 1MiB +11 +3-4 ≠ 11.0 MiB 3.00 ms 4.00 ms ≥350 MB ≥466 MB +2 *")


def test_receives_contribute_nothing(base: Path, tmp_path: Path) -> None:
    """Bytes are counted once, by the sender; a send and its receive have the same size."""
    for rank, name in enumerate(("send 0->1", "recv 1<-0")):
        made = dump([None], ranks=2)
        made["entries"][0] |= {"profiling_name": f"nccl:{name}", "is_p2p": True, "p2p_seq_id": 1}
        write_json(tmp_path, {rank: made})
    rows = {row["operation"]: row for row in analyze(base, tmp_path, "--json", only="calls").document["calls"]["rows"]}
    assert {name: (row["message_bytes"], row["size_class"]) for name, row in rows.items()} == {
        "send": (1 << 20, "1MiB"),
        "recv": (0, "1MiB"),
    }


def test_files_that_are_no_dumps(base: Path, dumps: Path) -> None:
    """Each is named with the reason, and the rest is counted."""
    (dumps / "nccl_trace_rank_1").write_bytes(b"\x80\x02")
    write_json(dumps, {2: dump([1.0])}, "nccl_trace_rank_")
    (dumps / "nccl_trace_rank_2").unlink()
    (dumps / "notes.txt").write_text("nothing")
    answer = analyze(base, dumps, only="calls")
    assert answer.code == 0
    assert answer.err.startswith(f"otel-torchdist: warning: {dumps / 'nccl_trace_rank_1'}: ")
    assert answer.has("not known: the calls of rank 1")
    missing = analyze(base, dumps / "none", only="calls")
    assert (missing.code, missing.err) == (2, f"otel-torchdist: {dumps / 'none'}: no such file or directory\n")


def test_folder_of_tapes(base: Path, tmp_path: Path) -> None:
    """A path to a job directory is the same as `--run-dir`, and so is a user's own link to it."""
    with memory_directory() as directory:
        tape = FakeTape(directory, 0, 1)
        tape.run()
        tape.writer.close()
        (tmp_path / "newest").symlink_to(directory)
        for arguments in ([directory], ["--run-dir", directory], [tmp_path / "newest"]):
            answer = analyze(base, *arguments, "--json", only="calls")
            assert [row["calls"] for row in answer.document["calls"]["rows"]] == [1], answer.err
