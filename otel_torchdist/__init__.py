"""OpenTelemetry for torch.distributed: shows which rank blocks the job, since when, and where in its code.

Switching on
------------

Without code changes, by an environment variable::

    OTEL_PYTHON_TORCHDIST_ENABLED=true torchrun --nproc-per-node 8 train.py

An agent, one process per job and node, then exports spans to ``OTEL_EXPORTER_OTLP_ENDPOINT``, serves
``http://localhost:9464/metrics`` and watches for stalls.

In code, with your own providers or the global ones. A thread of each rank then exports::

    from otel_torchdist import TorchDistInstrumentor

    TorchDistInstrumentor().instrument(tracer_provider=provider)
    ...
    TorchDistInstrumentor().uninstrument()

Steps
-----

Each training step is a trace. A step ends with the optimizer's step, or where you mark it::

    from otel_torchdist import mark_step

    for batch in batches:
        train_on(batch)
        mark_step(samples=len(batch))  # optional; also tokens= and flops=

Waits for PyTorch's ``DataLoader`` are recorded. For other iterators, mark the wait::

    from otel_torchdist import data_wait

    with data_wait():
        batch = next(my_batches)

Expected waits
--------------

An operation that is open for 10 s is reported as a stall (``OTEL_PYTHON_TORCHDIST_STALL_TIMEOUT``). If ranks wait for
work that one of them does alone, that rank can announce the maximum duration in seconds::

    from otel_torchdist import expect_wait

    if dist.get_rank() == 0:
        with expect_wait(600):
            save_checkpoint()
    dist.barrier()

Acting on a stall
-----------------

A stall is logged as a warning by the logger ``otel_torchdist``. It can also call your function, once per stall, after
another 30 s (``OTEL_PYTHON_TORCHDIST_ON_STALL_GRACE``)::

    from otel_torchdist import StalledRun, TorchDistInstrumentor

    def page(stall: StalledRun) -> None:
        send_message(f"run {stall.run[:8]}: {stall.text}")  # rank 2 has not entered all_reduce (sequence 80, ...

    TorchDistInstrumentor().instrument(on_stall=page)

It runs on a thread in one rank of the node, and its exceptions are logged. Without code changes, the agent calls it
with ``OTEL_PYTHON_TORCHDIST_ON_STALL=callback:my_module:page``.

Rescue
------

Before a stalled run is ended, each responsive rank can save its state, from which the restart continues. The module
``otel_torchdist.rescue`` helps, with ``OTEL_PYTHON_TORCHDIST_ON_STALL=rescue:__main__:save,abort``::

    from otel_torchdist import StalledRank, rescue

    shards = rescue.LocalShards(model, optimizer)

    def save(stalled: StalledRank) -> int:
        copied = shards.copy()
        rescue.save(copied, stalled, "/shared/rescue", step=copied["steps"])
        return copied["steps"]

    saved = rescue.latest("/shared/rescue", dist.get_rank(), dist.get_world_size())
    if saved is not None:
        shards.load(torch.load(saved))

Hooks
-----

Your functions are called around the operations of each rank, with their tensors (not copies)::

    from otel_torchdist import Hooks, OperationCall, TorchDistInstrumentor

    def check(call: OperationCall) -> None:
        assert all(tensor.isfinite().all() for tensor in call.inputs), (call.rank, call.operation, call.sequence)

    TorchDistInstrumentor().instrument(hooks=Hooks(before_operation=check, operations=("all_reduce",)))

Their exceptions go to your program. Without code changes, use ``OTEL_PYTHON_TORCHDIST_HOOKS=my_module:check``.

Settings
--------

``Config`` holds the settings of the environment, with durations in seconds. A program can read or replace it::

    from otel_torchdist import Config

    threshold_s = Config.from_environment().stall_timeout

    settings = {"OTEL_PYTHON_TORCHDIST_READER": "thread", "OTEL_PYTHON_TORCHDIST_STALL_TIMEOUT": "30000"}
    TorchDistInstrumentor().instrument(config=Config.from_environment({**os.environ, **settings}))

Errors
------

Our errors are never raised into your program. They are logged, and the training continues.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from otel_torchdist.agent.actions.stalled_run import StalledRun
    from otel_torchdist.capture.parts.expectations import expect_wait
    from otel_torchdist.capture.parts.rescue import StalledRank
    from otel_torchdist.capture.parts.step_parts import data_wait
    from otel_torchdist.capture.parts.steps import mark_step
    from otel_torchdist.capture.tensors.hooks import Hooks, OperationCall
    from otel_torchdist.config import Config
    from otel_torchdist.instrumentor import TorchDistInstrumentor

__all__ = [
    "Config",
    "Hooks",
    "OperationCall",
    "StalledRank",
    "StalledRun",
    "TorchDistInstrumentor",
    "data_wait",
    "expect_wait",
    "mark_step",
]

# Imported at their first use: every `import torch` imports this package if it is installed, and must not become slower.
_MODULES = {
    "Config": "otel_torchdist.config",
    "Hooks": "otel_torchdist.capture.tensors.hooks",
    "OperationCall": "otel_torchdist.capture.tensors.hooks",
    "StalledRank": "otel_torchdist.capture.parts.rescue",
    "StalledRun": "otel_torchdist.agent.actions.stalled_run",
    "TorchDistInstrumentor": "otel_torchdist.instrumentor",
    "data_wait": "otel_torchdist.capture.parts.step_parts",
    "expect_wait": "otel_torchdist.capture.parts.expectations",
    "mark_step": "otel_torchdist.capture.parts.steps",
}


def __getattr__(name: str) -> object:
    """Import a public name at its first use (PEP 562)."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names, imported or not."""
    return sorted({*globals(), *__all__})
