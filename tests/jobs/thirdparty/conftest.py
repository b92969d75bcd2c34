"""Runs third-party programs, with and without us."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest

from tests.jobs.thirdparty.twins import TwinRunner
from tests.support.launch.warm_python import WarmPython

LIBRARIES = (
    "accelerate",
    "lightning.pytorch",
    "lightning.fabric",
    "transformers.trainer",
    "transformers.models.llama.modeling_llama",
)
OF_TORCH = (
    "networkx",
    "torch._dynamo.backends.registry",
    "torch._functorch._activation_checkpointing",
    "torch._functorch.aot_autograd",
    "torch._inductor.compile_fx",
    "torch.distributed.checkpoint",
    "torch.distributed.tensor.parallel",
    "torch.export",
    "torch.profiler",
)
"""All take seconds to import, so all ranks are forked from one interpreter that has imported them."""


@pytest.fixture(scope="session")
def twin_runner() -> Iterator[TwinRunner]:
    """Runs jobs twice."""
    python = WarmPython(*OF_TORCH, *filter(is_here, LIBRARIES), "tests.jobs.thirdparty.issued")
    runner = TwinRunner(python)
    yield runner
    runner.clean_up()
    python.close()


def is_here(module: str) -> bool:
    """Whether the library that a module belongs to is installed."""
    return importlib.util.find_spec(module.partition(".")[0]) is not None


def needs(library: str) -> pytest.MarkDecorator:
    """Skips the tests of a library that is not installed, which never happens after `make` has installed it."""
    return pytest.mark.skipif(
        not is_here(library), reason=f"{library} is not installed: it has no release for this Python"
    )
