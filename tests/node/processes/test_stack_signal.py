"""Stacks by signal, and every reason for which the signal is not sent. Each rank is a real process."""

from __future__ import annotations

import inspect
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from otel_torchdist.judge.world.following.follower import TapeFollower
from otel_torchdist.model.rank_state.stacks import Stacks, ThreadStack
from otel_torchdist.node.job.leftovers import find_leftovers
from otel_torchdist.node.processes.stack_signal import ask_by_signal
from otel_torchdist.tape.layout import LiveWord
from otel_torchdist.tape.mapped import MappedTape
from otel_torchdist.tape.reading.reader import TapeReader
from otel_torchdist.tape.seals import seal_live
from tests.node.processes import signalled_rank
from tests.node.processes.conftest import SIGNAL, RankProcess, needs_signals_for_threads
from tests.support.waiting import until

Start = Callable[..., RankProcess]
HOLD_LINE = inspect.getsourcelines(signalled_rank.hold)[1] + 2


def stack_of(rank: RankProcess, thread: int, **flag: int) -> ThreadStack:
    """The stack of a thread, obtained by signal."""
    asked = ask_by_signal(rank.tape, thread, **flag)
    assert asked is not None
    return until(asked.answer)


def assert_left_alone(rank: RankProcess, thread: int = 0) -> None:
    """The rank gets no signal, nothing is added to its file, and it survives."""
    before = rank.file.read_bytes() if rank.file.exists() else None
    assert ask_by_signal(rank.tape, thread) is None
    assert (rank.file.read_bytes() if rank.file.exists() else None) == before
    assert rank.process.poll() is None


def test_stack_while_the_gil_is_held(start: Start) -> None:
    """The stack of a main thread in native code with the GIL is returned, innermost first; then the call goes on."""
    rank = start()
    assert rank.send("hold") == str(rank.pid)
    stack = stack_of(rank, 0)
    assert (stack.thread, stack.frames[0].line) == (rank.pid, HOLD_LINE)
    assert [frame.function for frame in stack.frames] == ["hold", "main", "<module>"]
    assert {frame.file for frame in stack.frames} == {signalled_rank.__file__}
    rank.write("\n")
    assert rank.send("report_taken") == "0"


@needs_signals_for_threads
def test_stack_of_the_thread_that_is_meant(start: Start) -> None:
    """The stack is that of the named thread; the main thread's is another."""
    rank = start()
    thread = int(rank.send("hold_elsewhere"))
    assert thread != rank.pid
    assert [frame.function for frame in stack_of(rank, thread).frames][:2] == ["hold", "run"]
    functions = [frame.function for frame in stack_of(rank, 0).frames]
    assert functions[-3:] == ["hold_elsewhere", "main", "<module>"]


def test_kernel_that_knows_no_threads(start: Start) -> None:
    """Before Linux 6.9 the signal is sent to the process, and the main thread's stack comes, whichever was meant."""
    rank = start()
    thread = int(rank.send("hold_elsewhere"))
    stack = stack_of(rank, thread, flag=1 << 20)  # which this kernel does not know
    assert stack.thread == rank.pid
    assert [frame.function for frame in stack.frames][-3:] == ["hold_elsewhere", "main", "<module>"]


def test_thread_of_another_process(start: Start) -> None:
    """A thread that is not the rank's is not signalled, though its own process would take the signal."""
    rank, other = start(), start()
    before = other.file.read_bytes()
    assert_left_alone(rank, other.pid)
    assert other.file.read_bytes() == before


def test_rank_that_runs_python(start: Start) -> None:
    """A continuing heartbeat, or an answer, shows that the GIL is free: a signal might come as frames are created."""
    rank = start()
    rank.tape.words[LiveWord.ANSWER] = rank.tape.words[LiveWord.REQUEST]
    assert_left_alone(rank)
    rank.rest()
    rank.tape.words[LiveWord.HEARTBEAT_US] = seal_live(LiveWord.HEARTBEAT_US, time.monotonic_ns() // 1000)
    assert_left_alone(rank)
    rank.tape.words[LiveWord.HEARTBEAT_US] ^= 1  # damaged
    assert_left_alone(rank)
    rank.rest()
    assert ask_by_signal(rank.tape, 0) is not None


@pytest.mark.parametrize("field", ["pid_start_ticks", "pid_namespace", "boot_id"])
def test_process_that_only_has_the_pid(start: Start, field: str) -> None:
    """A pid that started at another time, or in another namespace or on another machine, is another process."""
    assert_left_alone(start(changes={field: 1}))


def test_pid_of_a_dead_rank(start: Start) -> None:
    """A dead rank's pid belongs to a process that takes the signal: it gets none, for the tape's lock is free."""
    rank = start()
    path = rank.tape.path
    rank.process.kill()
    rank.process.wait()
    heir = start()
    shutil.copy(heir.tape.path, path.with_name("00000000000000aa.tape"))
    shutil.copy(path.with_suffix(".names"), path.with_name("00000000000000aa.names"))
    os.link(heir.file, path.with_name("00000000000000aa.fault"))
    dead = MappedTape(path.with_name("00000000000000aa.tape"))
    assert dead.identity.pid == heir.pid
    before = heir.file.read_bytes()
    assert ask_by_signal(dead, 0) is None
    assert heir.file.read_bytes() == before
    dead.close()
    assert_left_alone(rank=heir, thread=rank.tape.identity.pid)


def test_rank_in_another_pid_namespace(start: Start) -> None:
    """A rank with pid 1 in a container is not the process with pid 1 here."""
    unshare = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if shutil.which("unshare") is None or subprocess.run([*unshare, "true"], capture_output=True).returncode:
        pytest.skip("a PID namespace cannot be made here")
    rank = start(under=unshare)
    assert (rank.pid, rank.offers) == (1, True)
    assert_left_alone(rank)


@pytest.mark.parametrize("owner", sorted(signalled_rank.OWNERS.keys() - {"none"}))
def test_signal_that_is_in_use(start: Start, owner: str) -> None:
    """A signal that the user's program uses stays with it, and the rank reports no handler."""
    rank = start(owner)
    assert not rank.offers
    assert not rank.file.exists()
    assert_left_alone(rank)
    if owner == "python":
        os.kill(rank.pid, SIGNAL)
        assert rank.send("report_taken") == "1"


def test_handler_that_was_replaced(start: Start) -> None:
    """A program that takes over the signal later keeps it for its next tapes too."""
    rank = start()
    rank.send("take_signal")
    assert rank.send("offer_again") == "False"
    rank.send("give_signal_up")
    assert_left_alone(rank)
    assert rank.send("offer_again") == "False"


def test_threads_that_take_long_turns(start: Start) -> None:
    """Where Python code itself may hold the GIL for seconds, a late heartbeat does not show that none runs."""
    rank = start()
    rank.send("take_long_turns")
    assert rank.send("offer_again") == "False"


@pytest.mark.parametrize("command", ["give_signal_up", "block_signal", "use_descriptor"])
def test_handler_that_does_not_take_it(start: Start, command: str) -> None:
    """No signal if the handler is gone, the thread blocks it, or the descriptor leads to a file of the user."""
    rank = start()
    rank.send(command)
    assert_left_alone(rank)


def test_stack_that_is_being_written(start: Start) -> None:
    """While the thread has the signal blocked, as in its handler, the file may contain half a stack."""
    rank = start()
    asked = ask_by_signal(rank.tape, 0)
    assert asked is not None
    assert until(asked.answer)
    rank.send("block_signal")
    assert asked.answer() is None


def test_descriptor_that_became_the_users(start: Start) -> None:
    """A user's file under our descriptor's number is never written to, and the next tape has another descriptor."""
    rank = start()
    rank.send("use_descriptor")
    before = signalled_rank.decode_offer(rank.file.read_bytes())
    assert rank.send("offer_again") == "True"
    after = signalled_rank.decode_offer(rank.file.read_bytes())
    assert before is not None and after is not None
    assert before.descriptor != after.descriptor
    assert stack_of(rank, 0)
    rank.send("close_tape")
    os.kill(rank.pid, SIGNAL)
    assert rank.send("report_taken") == "0"
    assert rank.file.with_name("of-the-user").read_bytes() == b""
    assert os.path.samefile(f"/proc/{rank.pid}/fd/{before.descriptor}", rank.file.with_name("of-the-user"))


def test_after_exec(start: Start) -> None:
    """A process that now runs another program is left alone."""
    rank = start()
    rank.send("become_another_program")
    assert_left_alone(rank)
    rank.write("\n")
    assert rank.process.wait(60) == 0


def test_after_the_tapes_end(start: Start) -> None:
    """After the end of the tape no signal is sent; one that comes late finds a handler, and writes nowhere."""
    rank = start()
    rank.send("close_tape")
    assert_left_alone(rank)
    assert not rank.file.exists()
    os.kill(rank.pid, SIGNAL)
    assert rank.send("report_taken") == "0"
    assert rank.send("offer_again") == "True"
    head = rank.file.read_bytes()
    os.kill(rank.pid, SIGNAL)
    until(lambda: rank.file.read_bytes() != head)


def test_stopped_process(start: Start) -> None:
    """A stopped process gets no signal: it could not answer, and would be interrupted later."""
    rank = start()
    os.kill(rank.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, rank.pid, os.WSTOPPED | os.WNOWAIT)
    assert_left_alone(rank)


def test_own_process(start: Start) -> None:
    """A process that reads its own tape does not signal itself."""
    rank = start()
    assert rank.offers
    head = rank.file.read_bytes()
    assert rank.send("signal_itself") == "None"
    assert rank.file.read_bytes() == head


def test_descriptor_is_high_and_private(start: Start) -> None:
    """Low descriptors are the user's, and a child that runs another program does not inherit ours."""
    rank = start()
    offer = signalled_rank.decode_offer(rank.file.read_bytes())
    assert offer is not None
    assert offer.descriptor >= 900
    flags = Path(f"/proc/{rank.pid}/fdinfo/{offer.descriptor}").read_text().split("flags:")[1].split()[0]
    assert int(flags, 8) & os.O_CLOEXEC


def test_file_that_has_grown(start: Start) -> None:
    """A rank that has written a megabyte of stacks is not signalled again."""
    rank = start()
    os.truncate(rank.file, (1 << 20) + 1)
    assert_left_alone(rank)


def test_leftovers(start: Start) -> None:
    """The file of a rank that died is cleaned up too."""
    rank = start()
    directory = rank.tape.path.parent
    rank.process.kill()
    rank.process.wait()
    rank.tape.path.unlink()
    rank.file.with_name("." + rank.file.name).touch()
    find_leftovers([directory])
    assert list(directory.iterdir()) == []


# --- Stacks by signal in the snapshot of a rank -----------------------------------------------------------------------


class Followed:
    """A rank whose GIL is held, and its follower."""

    def __init__(self, rank: RankProcess) -> None:
        self.rank = rank
        self.thread = int(rank.send("enter_elsewhere"))
        self.reader = TapeReader(rank.tape.path)
        self.follower = TapeFollower(self.reader)
        self.follower.observe(self.reader.poll())

    def stacks(self) -> Stacks:
        """The rank's stacks in its snapshot."""
        view = self.follower.view(time.monotonic_ns())
        assert view is not None
        assert view.stacks is not None
        return view.stacks


@pytest.fixture
def followed(start: Callable[..., RankProcess]) -> Iterator[Followed]:
    """A rank in an operation, in another thread than the main one."""
    one = Followed(start())
    yield one
    one.reader.close()


@needs_signals_for_threads
def test_thread_of_the_operation(followed: Followed) -> None:
    """The stack is that of the thread that is in the operation, and is marked as taken by a signal."""
    followed.follower.ask_for_stacks(1)
    assert followed.stacks() == Stacks(1, None)
    followed.follower.ask_by_signal()
    [stack] = until(lambda: followed.stacks().threads)
    assert followed.stacks() == Stacks(1, (stack,), by_signal=True)
    assert stack.thread == followed.thread
    assert "enter" in [frame.function for frame in stack.frames]


def test_next_request(followed: Followed) -> None:
    """A stack that answered one request does not answer the next."""
    followed.follower.ask_for_stacks(1)
    followed.follower.ask_by_signal()
    assert until(lambda: followed.stacks().threads)
    followed.follower.ask_for_stacks(2)
    assert (followed.stacks().asked_ns, followed.stacks().threads) == (2, None)
    followed.follower.ask_by_signal()
    assert until(lambda: followed.stacks().threads)
    assert followed.stacks().by_signal
