"""Owners of code by file path, on the rank and on the reader."""

import dataclasses
import threading
from multiprocessing import spawn
from pathlib import Path

import pytest
import torch

from otel_torchdist.model.code_owner import FrameOwner, innermost, is_process_start, owner_of, package_of

SITE = "/home/ada/.venv/lib/python3.11/site-packages"


@pytest.mark.parametrize(
    ("file", "owner"),
    [
        ("/home/ada/train.py", FrameOwner.USER),
        ("/home/ada/torch/train.py", FrameOwner.USER),
        ("/home/ada/src/teamutils/gather.py", FrameOwner.USER),  # an editable install
        ("/home/ada/otel_torchdist/examples/train.py", FrameOwner.USER),
        ("<string>", FrameOwner.USER),
        ("<stdin>", FrameOwner.USER),
        ("<ipython-input-3-0a1b2c>", FrameOwner.USER),
        ("/tmp/ipykernel_1/2.py", FrameOwner.USER),
        ("/srv/job/app.pyz/train.py", FrameOwner.USER),
        ("train.py", FrameOwner.USER),  # of a frozen application
        (f"{SITE}/torch/nn/modules/module.py", FrameOwner.TORCH),
        ("/usr/lib/python3/dist-packages/torch/cuda/__init__.py", FrameOwner.TORCH),
        ("/home/ada/src/pytorch/torch/distributed/run.py", FrameOwner.TORCH),
        ("torch/nn/modules/module.py", FrameOwner.TORCH),
        ("<eval_with_key>.4", FrameOwner.TORCH),
        ("/tmp/torchinductor_ada/ab/cab.py", FrameOwner.TORCH),
        (f"{SITE}/torchvision/io.py", FrameOwner.PACKAGE),
        (f"{SITE}/six.py", FrameOwner.PACKAGE),
        (f"{SITE}/otel_torchdist/cli/demo.py", FrameOwner.PACKAGE),
        ("/opt/conda/envs/a/lib/python3.12/site-packages/lightning/fabric.py", FrameOwner.PACKAGE),
        ("<attrs generated init train.Row>", FrameOwner.PACKAGE),
        (f"{SITE}/otel_torchdist/capture/core/c10d/waits.py", FrameOwner.OTEL_TORCHDIST),
        (f"{SITE}/otel_torchdist/native/library.py", FrameOwner.OTEL_TORCHDIST),
        ("/home/ada/src/otel_torchdist/guard.py", FrameOwner.OTEL_TORCHDIST),
        ("otel_torchdist/capture/core/c10d/waits.py", FrameOwner.OTEL_TORCHDIST),
        ("/usr/lib/python3.11/threading.py", FrameOwner.STANDARD_LIBRARY),
        ("/opt/conda/lib/python3.11/concurrent/futures/thread.py", FrameOwner.STANDARD_LIBRARY),
        (f"{SITE}/typing_extensions.py", FrameOwner.STANDARD_LIBRARY),
        ("<frozen runpy>", FrameOwner.STANDARD_LIBRARY),
        ("threading.py", FrameOwner.STANDARD_LIBRARY),
        ("concurrent/futures/thread.py", FrameOwner.STANDARD_LIBRARY),
    ],
)
def test_owner(file: str, owner: FrameOwner) -> None:
    """The path alone decides: the packages of the rank need not exist where its tape is read."""
    assert owner_of(file) is owner


@pytest.mark.parametrize("module", ["spawn", "forkserver"])
def test_start_of_a_process(module: str) -> None:
    """In a stack without user code, the command by which `multiprocessing` starts Python is not shown as the user's."""
    start = [(f"/usr/lib/python3.11/multiprocessing/{module}.py", "main"), ("<string>", "<module>")]
    library = [(f"{SITE}/lightning/trainer.py", "fit")]
    assert innermost([*library, *start]) == 0
    assert innermost([*start[:1], ("/home/ada/train.py", "<module>")]) == 1
    assert innermost([*library, ("<string>", "<module>")]) == 1, "a user's own `python -c`"


def test_command_of_a_new_process() -> None:
    """The commands that Python itself builds are told from a user's own `python -c`."""
    [*_, command, _] = spawn.get_command_line()
    ours, theirs = (compile(text, "<string>", "exec") for text in (command, "import train; train.main()"))
    assert is_process_start(ours.co_filename, ours.co_names)
    assert not is_process_start(theirs.co_filename, theirs.co_names)
    assert not is_process_start(__file__, ours.co_names)


def test_owners_in_this_process() -> None:
    """This process's torch and standard library are recognized, and this test is user code."""
    assert owner_of(str(torch.__file__)) is FrameOwner.TORCH
    assert owner_of(threading.Thread.run.__code__.co_filename) is FrameOwner.STANDARD_LIBRARY
    assert owner_of(str(Path(__file__).resolve())) is FrameOwner.USER


def test_generated_methods() -> None:
    """Methods that `dataclasses` generates have the same file as `python -c`."""

    @dataclasses.dataclass
    class Row:
        value: int

    code = Row.__init__.__code__
    assert owner_of(code.co_filename, code.co_name) is FrameOwner.STANDARD_LIBRARY
    assert owner_of(code.co_filename, "main") is FrameOwner.USER


@pytest.mark.parametrize(
    ("file", "package"),
    [
        (f"{SITE}/torchmetrics/utilities/distributed.py", "torchmetrics"),
        (f"{SITE}/six.py", "six"),
        (f"{SITE}/torch/nn/modules/module.py", "torch"),
        ("/usr/lib/python3.11/threading.py", "python"),
        ("/home/ada/train.py", ""),
    ],
)
def test_package(file: str, package: str) -> None:
    """The package is named after its folder in `site-packages`."""
    assert package_of(file) == package


USER, HELPER = ("/home/ada/train.py", "main"), (f"{SITE}/torchmetrics/metric.py", "compute")
TORCH, OURS = (
    (f"{SITE}/torch/distributed/c10d.py", "wait"),
    (f"{SITE}/otel_torchdist/capture/core/c10d/waits.py", "wait"),
)
PYTHON = ("/usr/lib/python3.11/threading.py", "run")


@pytest.mark.parametrize(
    ("frames", "place"),
    [
        ((OURS, TORCH, HELPER, USER, HELPER, USER), 3),
        ((OURS, TORCH, HELPER, PYTHON), 2),
        ((OURS, PYTHON), 1),
        ((OURS,), None),
        ((), None),
    ],
)
def test_innermost(frames: tuple[tuple[str, str], ...], place: int | None) -> None:
    """The innermost frame of user code is shown, else a package's, else torch's or Python's, and never ours."""
    assert innermost(frames) == place
