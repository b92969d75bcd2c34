"""Records the exception that ends the training function of a worker of Ray Train.

Ray Train calls the function on a thread and catches every exception. It then destroys the process groups, and ends the
process with exit code 1, as it does after a successful training: neither torch nor the exit code shows the exception.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, Final

from otel_torchdist import guard
from otel_torchdist.capture.core.failures import blame_of, hide_frame
from otel_torchdist.capture.core.part import SessionPart
from otel_torchdist.model.kinds import Blame

if TYPE_CHECKING:
    from otel_torchdist.capture.core.torch_api import Patches

THREAD_RUNNER: Final = "ray.train.v2._internal.execution.worker_group.thread_runner"
"""The module that calls the training function in Train V2. A worker has imported it before its first group."""


class RayTraining(SessionPart):
    """The wrapper of the call of the training function. Outside workers of Ray Train it does nothing."""

    def __init__(self, failed: Callable[[BaseException], object]) -> None:
        """Wrap nothing yet.

        Args:
            failed: Called with the exception, on the thread of the function.
        """
        self._failed = failed

    def hook(self, patches: Patches) -> None:
        """Wrap the training functions that Ray starts from now on."""
        runner: Any = getattr(sys.modules.get(THREAD_RUNNER), "ThreadRunner", None)
        if runner is not None:
            patches.replace(runner, "run", self._make_run)

    def _make_run(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def run(runner: Any, target: Callable[[], Any], *args: Any, **kwargs: Any) -> Any:
            return original(runner, self._watched(target), *args, **kwargs)

        return run

    def _watched(self, function: Callable[[], Any]) -> Callable[[], Any]:
        @wraps(function)
        def watched() -> Any:
            try:
                return function()
            except BaseException as error:
                with guard.guarded("the exception of a training function"):
                    if not _is_consequence(error):
                        self._failed(error)
                hide_frame(error)  # Ray shows the traceback from its fourth frame on
                raise

        return watched


def _is_consequence(error: BaseException) -> bool:
    """Return whether an exception is an exit without error, or one that a backend raises because of another rank."""
    if isinstance(error, SystemExit):
        return not error.code
    return blame_of(error) in (Blame.CONNECTION, Blame.TIMEOUT)
