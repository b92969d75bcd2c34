"""`analyze` and `diagnose` on traces of profilers, and on what lies beside them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from otel_torchdist.analysis.parallelism.wording import TIMES
from tests.cli.analyze.test_graph import DUMPS
from tests.sources.flight.made_dumps import late_rank, write_json
from tests.sources.profiles.made import Format, MadeGroup, MadeTrace
from tests.sources.profiles.worlds import FIRST, traces_of
from tests.support.commands.asking import analyze, ask
from tests.support.repository import REPOSITORY

DATA = REPOSITORY / "tests" / "sources" / "profiles" / "data"
PAGE = (REPOSITORY / "docs" / "graph.md").read_text()
NO_STATE = "no state of a hang; `otel-torchdist analyze` reads"


def three(folder: Path, form: Format = Format.POSITIONS) -> None:
    """Write the traces of a job of 16 ranks with three axes."""
    for trace in traces_of(next(world for world in FIRST if world.name == "three"), form):
        trace.write(folder)


def test_graph(base: Path, tmp_path: Path) -> None:
    """The text and the document show the axes, and which of them cross hosts."""
    three(tmp_path)
    answer = analyze(base, tmp_path, only="graph")
    assert (answer.code, answer.err) == (0, "")
    shape = TIMES.join(("16 ranks = TP 2", "DP 2", "PP 4"))
    assert answer.out.startswith(f"traces of PyTorch's profiler of 16 ranks\n\n{shape}\n")
    assert "all_reduce of tensors of unknown shape (1,536 in backward)" in answer.out
    document = analyze(base, tmp_path, "--json", only="graph").document["graph"]
    assert [axis["size"] for axis in document["axes"]] == [2, 2, 4]
    assert [axis["across_hosts"] for axis in document["axes"]] == [0, 0, 4]
    assert document["hosts"]["9"] == "node1"


def test_the_trace_of_the_page(base: Path) -> None:
    """The documentation shows what the command prints for the trace of one rank of a real job."""
    answer = analyze(base, DATA, only="graph")
    assert (answer.code, answer.err) == (0, "")
    assert f"```\n{answer.out}```" in PAGE


def test_stats(base: Path, tmp_path: Path) -> None:
    """Calls are timed by their kernels, and compared where traces number them."""
    three(tmp_path)
    answer = analyze(base, tmp_path, only="calls")
    assert (answer.code, answer.err) == (0, "")
    assert answer.has(r" all_reduce mesh_tp \(0-1\) +64KiB +384 +192 .*")
    document = analyze(base, tmp_path, "--json", only="calls").document["calls"]
    assert document["differences"] == []
    assert {group["group"]["name"].split()[0] for group in document["groups"]} == {"default_pg", "mesh_dp", "mesh_tp"}
    assert all(group["incomplete"] == 0 for group in document["groups"])


def test_missing_ranks(base: Path) -> None:
    """Ranks without a trace are named by both commands."""
    for only in ("graph", "calls"):
        answer = analyze(base, DATA / "nccl_data.json.gz", only=only)
        assert answer.out.startswith("traces of PyTorch's profiler of 1 of 2 ranks\n")
        assert "not known: the calls of rank 1\n" in answer.out


def test_diagnose(base: Path, tmp_path: Path) -> None:
    """A trace holds no state of a hang: the command says so, and which ones read it. Dumps beside it are still read."""
    path = shutil.copy(DATA / "nccl_data.json.gz", tmp_path)
    answer = ask(base, tmp_path)
    assert answer.code == 2
    assert answer.err == (
        f"otel-torchdist: warning: {path} is a profiler trace and holds {NO_STATE} it\n"
        f"otel-torchdist: {tmp_path}: nothing that can be read\n"
    )
    write_json(tmp_path, {0: late_rank(2, late=1)[0]})
    answer = ask(base, tmp_path)
    assert answer.code != 2 and f"{NO_STATE} it\n" in answer.err


def test_traces_and_dumps(base: Path) -> None:
    """Which of both is meant is not guessed."""
    for only in ("graph", "calls"):
        answer = analyze(base, DATA, DUMPS, only=only)
        assert (answer.code, answer.out) == (2, "")
        assert answer.err == (
            f"otel-torchdist: {DATA}, {DUMPS}: dumps of the flight recorder, such as {DUMPS}/_dump_0, and traces of a "
            f"profiler, such as {DATA}/nccl_data.json.gz; name only one kind\n"
        )


def test_traces_beside_other_files(base: Path, tmp_path: Path) -> None:
    """Dumps as JSON are dumps, too; other files do not matter."""
    path = shutil.copy(DATA / "nccl_data.json.gz", tmp_path)
    (tmp_path / "config.json").write_text('{"model": "llama"}')
    (tmp_path / "memory.pickle").write_bytes(b"\x80\x04.")
    assert analyze(base, tmp_path, only="graph").code == 0
    write_json(tmp_path, {0: late_rank(2, late=1)[0]})
    answer = analyze(base, tmp_path, only="graph")
    assert (answer.code, f"such as {tmp_path}/rank_0.json" in answer.err, str(path) in answer.err) == (2, True, True)


def test_other_tools(base: Path, tmp_path: Path) -> None:
    """A trace of a browser, or of TensorFlow, gets a sentence, and so does the command's end."""
    for name in ("chrome.json", "tf.trace.json"):
        event = {"name": "RunTask", "ph": "X", "cat": "toplevel", "ts": 1, "dur": 2}
        (tmp_path / name).write_text(json.dumps({"displayTimeUnit": "ns", "traceEvents": [event]}))
    answer = analyze(base, tmp_path, only="graph")
    assert (answer.code, answer.out) == (2, "")
    assert answer.err == (
        f"otel-torchdist: warning: {tmp_path}/chrome.json: it is not a trace of PyTorch's profiler\n"
        f"otel-torchdist: warning: {tmp_path}/tf.trace.json: it is not a trace of PyTorch's profiler\n"
        f"otel-torchdist: {tmp_path}: no trace that can be read\n"
    )


def test_a_job_without_communication(base: Path, tmp_path: Path) -> None:
    """The trace of a single process, with nothing distributed in it, is no error of the trace."""
    trace = MadeTrace(0, 1, {})
    trace.operator("aten::linear")
    trace.write(tmp_path, "rank_0.json")
    answer = analyze(base, tmp_path, only="graph")
    assert (answer.code, answer.err) == (
        2, f"otel-torchdist: {tmp_path}: no calls in groups whose members are known\n"
    )  # fmt: skip


@pytest.mark.parametrize(
    "options",
    [
        ("analyze", "--only", "calls"),
        ("analyze", "--only", "path"),
        ("analyze", "--html", "a"),
        ("export", "--perfetto", "a"),
    ],
)
def test_execution_traces_have_no_times(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]
) -> None:
    """What shows times needs times: ids of nodes are not drawn as such; the graph needs none."""
    monkeypatch.chdir(tmp_path)
    nodes = [{"id": 3, "name": "c10d::allreduce_", "inputs": {"values": [], "shapes": [], "types": []}}]
    (tmp_path / "et_rank_0.json").write_text(json.dumps({"schema": "1.1.1-chakra.0.0.4", "nodes": nodes}))
    command, *rest = options
    answer = ask(base, *rest, tmp_path / "et_rank_0.json", command=command)
    assert (answer.code, answer.out, answer.err) == (
        2, "", f"otel-torchdist: {tmp_path}/et_rank_0.json: execution traces have no times; `otel-torchdist analyze "
        "--only graph` reads them\n"
    )  # fmt: skip


def test_hostile_names(base: Path, tmp_path: Path) -> None:
    """Names from a trace are printed as text, whatever they contain."""
    trace = MadeTrace(0, 2, {"x": MadeGroup("\x1b]0;x\x07", "[bold]mesh\x1b[31m", (0, 1))})
    trace.call("allreduce\u202e", "x", 64)
    trace.write(tmp_path, "rank_0\x1b.json")
    for only in ("graph", "calls"):
        answer = analyze(base, tmp_path, only=only)
        assert answer.code == 0
        assert not set("\x1b\x07\u202e") & set(answer.out + answer.err)
        assert "[bold]mesh\\x1b[31m" in answer.out
