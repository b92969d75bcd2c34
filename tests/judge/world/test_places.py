"""The stack frame shown for a rank."""

import dataclasses

from otel_torchdist.judge.world.places import place_of, stack_text, thread_to_show, user_frame
from otel_torchdist.model.names import CallSiteName
from otel_torchdist.model.rank_state.stacks import Stacks, ThreadStack
from tests.support.worlds.fake_world import FakeWorld, group_of

VENV = "/home/ada/.venv/lib/python3.11/site-packages"
TRAIN = CallSiteName("load_batch", "/home/ada/train.py", 57)
MAIN = CallSiteName("main", "/home/ada/train.py", 90)
SLEEP = CallSiteName("Event.wait", "/usr/lib/python3.11/threading.py", 629)
REDUCE = CallSiteName("all_reduce", f"{VENV}/torch/distributed/distributed_c10d.py", 3000)
WRAPPER = CallSiteName("wrapper", f"{VENV}/torch/distributed/c10d_logger.py", 81)
SEND = CallSiteName("Session.send", f"{VENV}/requests/sessions.py", 703)
CONNECT = CallSiteName("connect", f"{VENV}/requests/adapters.py", 667)
TRAINER = CallSiteName("Trainer.fit", f"{VENV}/lightning/trainer.py", 12)


def test_user_frame_is_the_innermost_of_the_users() -> None:
    """The innermost user frame is shown; frames of torch, the standard library and packages are skipped."""
    assert user_frame([SLEEP, REDUCE, WRAPPER, TRAIN, TRAINER, MAIN]) == TRAIN


def test_function_of_a_package_that_a_line_has_called() -> None:
    """The innermost package function is the one that the rank waits in. Outer packages only run the user's code."""
    found = user_frame([SLEEP, CONNECT, SEND, TRAIN, TRAINER, MAIN])
    assert found == dataclasses.replace(TRAIN, through="requests.connect")


def test_thread_that_runs_nothing_of_the_users() -> None:
    """If a pool thread runs only torch's code, the line of the main thread, which waits for the pool, is shown."""
    world = FakeWorld(1)
    world.ranks[0].enter(group_of(0, 1), 1.0, thread=7)
    pool, main = ThreadStack(7, "ThreadPoolExecutor-0_0", (REDUCE, SLEEP)), ThreadStack(8, "MainThread", (SLEEP, MAIN))
    [view] = world.snapshot(20.0).in_order
    shown = dataclasses.replace(view, stacks=Stacks(view.heartbeat_ns, (main, pool)))
    assert place_of(shown, shown.open[0], view.heartbeat_ns).frame == MAIN
    alone = dataclasses.replace(view, stacks=Stacks(view.heartbeat_ns, (pool,)))
    assert place_of(alone, alone.open[0], view.heartbeat_ns).frame == REDUCE


def test_stack_from_before_the_last_call() -> None:
    """If a stack is older than the rank's last call, the line of the call is shown."""
    world = FakeWorld(1)
    group = group_of(0, 1)
    world.ranks[0].end(world.ranks[0].enter(group, 5.0, frames=(MAIN,), thread=8), 5.1)
    importing = ThreadStack(8, "MainThread", (REDUCE, SLEEP))
    world.ranks[0].write_stacks(2.0, importing)
    [moved_on] = world.snapshot(20.0).in_order
    assert place_of(moved_on, None, moved_on.heartbeat_ns).frame == MAIN
    world.ranks[0].enter(group, 6.0, frames=(TRAIN,), thread=8)
    world.ranks[0].write_stacks(5.5, importing)
    [waiting] = world.snapshot(20.0).in_order
    assert place_of(waiting, waiting.open[0], waiting.heartbeat_ns).frame == TRAIN
    world.ranks[0].write_stacks(7.0, importing)
    [asked_since] = world.snapshot(20.0).in_order
    assert place_of(asked_since, asked_since.open[0], asked_since.heartbeat_ns).frame == REDUCE


def test_stack_of_a_thread_while_another_one_calls() -> None:
    """A later call of another thread does not make a stack old. A thread without a stack may be autograd's."""
    world = FakeWorld(1)
    world.ranks[0].enter(group_of(0, 1), 6.0, thread=9, frames=(TRAIN,), blocking=False)
    main, saver = ThreadStack(8, "MainThread", (SLEEP, MAIN)), ThreadStack(9, "saver", (SLEEP, TRAIN))
    world.ranks[0].write_stacks(5.0, main, saver)
    [view] = world.snapshot(20.0).in_order
    assert place_of(view, None, view.heartbeat_ns).stacktrace
    world.ranks[0].write_stacks(5.0, main)
    [view] = world.snapshot(20.0).in_order
    assert not place_of(view, None, view.heartbeat_ns).stacktrace


def test_frame_of_a_package_where_the_user_has_none() -> None:
    """`python -m lightning` has no user file: the package's innermost frame is better than nothing."""
    assert user_frame([SLEEP, REDUCE, TRAINER]) == TRAINER
    assert user_frame([SLEEP]) == SLEEP
    assert user_frame([]) is None


def test_thread_to_show() -> None:
    """The thread of the open operation is shown, else the main thread, else the first."""
    worker, main = ThreadStack(7, "worker", (TRAIN,)), ThreadStack(8, "MainThread", (MAIN,))
    assert thread_to_show([worker, main], 7) is worker
    assert thread_to_show([worker, main], 99) is main
    assert thread_to_show([worker, main], None) is main
    assert thread_to_show([worker], 0) is worker
    assert thread_to_show([], None) is None


def test_stack_text_is_pythons_own_with_torch_folded() -> None:
    """The text has the most recent call last, and consecutive frames of torch as one line."""
    assert stack_text([SLEEP, WRAPPER, REDUCE, TRAIN, MAIN]).splitlines() == [
        '  File "/home/ada/train.py", line 90, in main',
        '  File "/home/ada/train.py", line 57, in load_batch',
        f"  [2 frames of torch, the last: wrapper in {VENV}/torch/distributed/c10d_logger.py:81]",
        '  File "/usr/lib/python3.11/threading.py", line 629, in Event.wait',
    ]


def test_stack_text_is_bounded() -> None:
    """A very deep stack is cut at its outer end."""
    deep = [CallSiteName("recurse", "/home/ada/" + "x" * 200 + ".py", line) for line in range(500)]
    text = stack_text(deep)
    assert len(text) <= 16_384
    assert text.endswith("line 0, in recurse")
