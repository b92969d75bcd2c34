"""Stacks beside a tape: whole or not at all."""

from __future__ import annotations

import faulthandler
from pathlib import Path

import pytest

from otel_torchdist.model.names import CallSiteName
from otel_torchdist.model.rank_state.stacks import ThreadStack
from otel_torchdist.node.job.requests.stacks import (
    SignalOffer,
    decode_offer,
    last_stack,
    offer_path,
    parse_stack,
    stacks_path,
    write_stacks,
)
from otel_torchdist.node.job.requests.stacks_file import read_stacks

STACKS = [
    ThreadStack(11, "MainThread", (CallSiteName("load", "/home/user/data.py", 7), CallSiteName("<module>", "é.py", 1))),
    ThreadStack(12, "", (), is_locked=True),
    ThreadStack(13, "", (), is_locked=False),
]


def test_round_trip(memory: Path) -> None:
    """Stacks are read back for the request that they answer and for earlier ones, not for later ones."""
    tape = memory / "0000000000000001.tape"
    assert read_stacks(tape, 1) is None
    write_stacks(tape, 2, STACKS)
    assert read_stacks(tape, 1) == read_stacks(tape, 2) == STACKS
    assert read_stacks(tape, 3) is None
    write_stacks(tape, 3, STACKS[1:])
    assert read_stacks(tape, 3) == STACKS[1:]
    assert [path.name for path in memory.iterdir()] == ["0000000000000001.stacks"]


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "7", '{"request": "x"}', '{"request": 9}', '{"request": 9, "threads": [{"thread": 1}]}']
)
def test_damaged(memory: Path, content: str) -> None:
    """A file with other content is not stacks."""
    tape = memory / "0000000000000001.tape"
    stacks_path(tape).write_text(content)
    assert read_stacks(tape, 1) is None


def test_cut(memory: Path) -> None:
    """No prefix of a file passes for the whole."""
    tape = memory / "0000000000000001.tape"
    write_stacks(tape, 1, STACKS)
    content = stacks_path(tape).read_bytes()
    for length in range(len(content)):
        stacks_path(tape).write_bytes(content[:length])
        assert read_stacks(tape, 1) is None


# --- The file in which a rank offers its handler, and the output of `faulthandler` ------------------------------------


STACK = """\
Stack (most recent call first):
  File "/home/ada/my data/train.py", line 57 in load_batch
  File "/home/ada/train.py", line 90 in <module>
"""
FRAMES = (
    CallSiteName("load_batch", "/home/ada/my data/train.py", 57),
    CallSiteName("<module>", "/home/ada/train.py", 90),
)


def test_offer() -> None:
    """What is written is read back; stacks may follow it."""
    offer = SignalOffer(39, 4032)
    assert decode_offer(offer.encode() + STACK.encode()) == offer
    assert offer_path(Path("/dev/shm/job/aa.tape")) == Path("/dev/shm/job/aa.fault")


@pytest.mark.parametrize("head", [b"", b"signal", SignalOffer(39, 4032).encode()[:-1], STACK.encode(), b"\0" * 64])
def test_no_offer(head: bytes) -> None:
    """A file that is empty, cut off or something else is not an offer."""
    assert decode_offer(head) is None


@pytest.mark.parametrize("title", ["Stack", "Thread 0x00007f1d5d7fa700", "Current thread 0x00007f1d5d7fa700"])
def test_stack(title: str) -> None:
    """The frames of the first stack, whatever its title says; a second one belongs to another signal."""
    first = STACK.replace("Stack", title)
    assert parse_stack(first) == FRAMES
    assert parse_stack("noise\n" + first + "\n" + STACK.replace("load_batch", "later")) == FRAMES


@pytest.mark.parametrize("text", ["", "Stack (most recent call first):\n", '  File "a.py", line 1 in f\n', "\0\n"])
def test_no_stack(text: str) -> None:
    """Frames without a title, or a title without frames, are not a stack."""
    assert parse_stack(text) == ()


def test_what_faulthandler_does_not_know() -> None:
    """Question marks for a line, a cut end, and letters that cannot be decoded are handled."""
    frames = '  File "???", line ??? in ???\n  File "\\udc80\\u00e9.py", line 3 in f...\n  ...\n'
    text = "Stack (most recent call first):\n" + frames
    assert parse_stack(text) == (CallSiteName("???", "???", 0), CallSiteName("f...", "\\udc80é.py", 3))


def test_stack_of_this_python(tmp_path: Path) -> None:
    """This Python's own `faulthandler` is understood, with letters beyond ASCII in names of files and functions."""
    source = tmp_path / "données.py"
    with (tmp_path / "dump").open("w") as file:
        names = {"dump": lambda: faulthandler.dump_traceback(file, all_threads=False)}
        exec(compile("def café():\n    dump()\ncafé()\n", str(source), "exec"), names)
    frames = parse_stack((tmp_path / "dump").read_text())
    assert frames[0].function == "<lambda>"
    assert frames[1:3] == (CallSiteName("café", str(source), 2), CallSiteName("<module>", str(source), 3))


def test_last_stack(tmp_path: Path) -> None:
    """The last of several stacks counts, however much precedes it; without one, or without a file, there is none."""
    path = tmp_path / "aa.fault"
    assert last_stack(path) == ()
    offer = SignalOffer(39, 4032).encode().decode()
    path.write_text(offer)
    assert last_stack(path) == ()
    path.write_text(offer + STACK.replace("load_batch", "earlier") * 2000 + STACK)
    assert last_stack(path) == FRAMES
    path.write_text(path.read_text() + STACK.partition("\n")[0])
    assert last_stack(path) == (), "its frames are still to come"
