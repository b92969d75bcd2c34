"""A program that closes descriptors which it did not open, and whose own files then get their numbers.

With the argument `gone`, the dictionary of the tape is removed before, so that it cannot be opened again.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from otel_torchdist.system.files.locks import is_file_locked
from tests.support.ranks.rank import TAPES, say, start_capture
from tests.support.waiting import until

CONTENT = b"CHECKPOINT" * 10
tapes = os.environ[TAPES]


def descriptors_of_ours() -> dict[int, str]:
    """Descriptors that refer to files in the directory of tapes."""
    found = dict[int, str]()
    for link in Path("/proc/self/fd").iterdir():
        try:
            target = os.readlink(link)
        except OSError:  # the descriptor used for listing is gone already
            continue
        if target.startswith(tapes):
            found[int(link.name)] = target
    return found


def is_alive() -> bool:
    """Whether another process sees that this one lives: closing the tape here would release the lock on it."""
    child = os.fork()
    if not child:
        os._exit(is_file_locked(tape))
    return bool(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


def before() -> None:
    """A call before the descriptors are closed."""
    dist.all_reduce(torch.ones(2))


def after() -> None:
    """Calls, and a group, that the dictionary does not have yet."""
    dist.all_reduce(torch.ones(3, 5))
    dist.all_reduce(torch.ones(7), group=dist.new_group([0], group_desc="later"))


warnings: list[str] = []
handler = logging.Handler()
handler.emit = lambda record: warnings.append(record.getMessage())  # type: ignore[method-assign]
logging.getLogger("otel_torchdist").addHandler(handler)
start_capture()
dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
before()
(tape,) = Path(tapes).rglob("*.tape")
ours = descriptors_of_ours()
if "gone" in sys.argv:
    tape.with_suffix(".names").unlink()
for number in ours:
    os.close(number)
with tempfile.TemporaryDirectory() as folder:
    files = {number: Path(folder, str(number)) for number in ours}
    for number, path in files.items():
        with path.open("wb") as file:
            os.dup2(file.fileno(), number)
        os.write(number, CONTENT)
    after()
    until(is_alive)
    if "gone" in sys.argv:
        until(lambda: warnings)
    dist.destroy_process_group()
    for number, path in files.items():
        os.write(number, CONTENT)
        assert os.path.samestat(os.fstat(number), path.stat())
        os.close(number)
    say(
        numbers=sorted(ours),
        files=sorted({Path(name).suffix for name in ours.values()}),
        spoiled=[ours[number] for number, path in files.items() if path.read_bytes() != 2 * CONTENT],
        warnings=warnings,
    )
