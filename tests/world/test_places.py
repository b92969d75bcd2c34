"""Which code a frame belongs to, and which frame is shown."""

import pytest

from otel_torchdist.code_owner import FrameOwner, owner_of
from otel_torchdist.job.requests.stacks import ThreadStack
from otel_torchdist.tape.names.model import CallSiteName
from otel_torchdist.world.places import stack_text, thread_to_show, user_frame

VENV = "/home/ada/.venv/lib/python3.11/site-packages"
TRAIN = CallSiteName("load_batch", "/home/ada/train.py", 57)
MAIN = CallSiteName("main", "/home/ada/train.py", 90)
SLEEP = CallSiteName("Event.wait", "/usr/lib/python3.11/threading.py", 629)
REDUCE = CallSiteName("all_reduce", f"{VENV}/torch/distributed/distributed_c10d.py", 3000)
WRAPPER = CallSiteName("wrapper", f"{VENV}/torch/distributed/c10d_logger.py", 81)
TRAINER = CallSiteName("Trainer.fit", f"{VENV}/lightning/trainer.py", 12)


@pytest.mark.parametrize(
    ("file", "owner"),
    [
        ("/home/ada/train.py", FrameOwner.USER),
        ("/home/ada/torch/train.py", FrameOwner.USER),
        ("/home/ada/otel_torchdist/examples/train.py", FrameOwner.USER),
        ("<string>", FrameOwner.USER),
        ("/tmp/ipykernel_1/2.py", FrameOwner.USER),
        (f"{VENV}/torch/nn/modules/module.py", FrameOwner.TORCH),
        ("/usr/lib/python3/dist-packages/torch/cuda/__init__.py", FrameOwner.TORCH),
        ("/home/ada/src/pytorch/torch/distributed/run.py", FrameOwner.TORCH),
        (f"{VENV}/torchvision/io.py", FrameOwner.PACKAGE),
        (f"{VENV}/otel_torchdist/capture/c10d/hot_path.py", FrameOwner.OTEL_TORCHDIST),
        ("/home/ada/src/otel_torchdist/guard.py", FrameOwner.OTEL_TORCHDIST),
        (f"{VENV}/otel_torchdist/cli/demo.py", FrameOwner.PACKAGE),
        ("/usr/lib/python3.11/socket.py", FrameOwner.STANDARD_LIBRARY),
        ("/usr/local/lib/python3.13t/threading.py", FrameOwner.STANDARD_LIBRARY),
        ("/home/ada/.pyenv/versions/3.10.13/lib/python3.10/json/decoder.py", FrameOwner.STANDARD_LIBRARY),
        ("<frozen importlib._bootstrap>", FrameOwner.STANDARD_LIBRARY),
    ],
)
def test_owner_of(file: str, owner: FrameOwner) -> None:
    """A path shows whose code it is, for the layouts that Python and its environments have."""
    assert owner_of(file) is owner


def test_user_frame_is_the_innermost_of_the_users() -> None:
    """Frames of torch, of the standard library and of packages are skipped as long as there is a user frame."""
    assert user_frame([SLEEP, REDUCE, WRAPPER, TRAIN, TRAINER, MAIN]) == TRAIN


def test_frame_of_a_package_where_the_user_has_none() -> None:
    """`python -m lightning` has no user file: the package's innermost frame is better than nothing."""
    assert user_frame([SLEEP, REDUCE, TRAINER]) == TRAINER
    assert user_frame([SLEEP]) == SLEEP
    assert user_frame([]) is None


def test_thread_to_show() -> None:
    """The thread that an operation names, else the main thread, else any."""
    worker, main = ThreadStack(7, "worker", (TRAIN,)), ThreadStack(8, "MainThread", (MAIN,))
    assert thread_to_show([worker, main], 7) is worker
    assert thread_to_show([worker, main], 99) is main
    assert thread_to_show([worker, main], None) is main
    assert thread_to_show([worker], 0) is worker
    assert thread_to_show([], None) is None


def test_stack_text_is_pythons_own_with_torch_folded() -> None:
    """Most recent call last, one line per frame, and a run of torch's frames is one line."""
    assert stack_text([SLEEP, WRAPPER, REDUCE, TRAIN, MAIN]).splitlines() == [
        '  File "/home/ada/train.py", line 90, in main',
        '  File "/home/ada/train.py", line 57, in load_batch',
        f"  [2 frames of torch, the last: wrapper in {VENV}/torch/distributed/c10d_logger.py:81]",
        '  File "/usr/lib/python3.11/threading.py", line 629, in Event.wait',
    ]


def test_stack_text_is_bounded() -> None:
    """The stack of a runaway recursion is cut at its outer end."""
    deep = [CallSiteName("recurse", "/home/ada/" + "x" * 200 + ".py", line) for line in range(500)]
    text = stack_text(deep)
    assert len(text) <= 16_384
    assert text.endswith("line 0, in recurse")
