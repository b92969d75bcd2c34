"""The ``torch.backends`` entry point: the last step of every ``import torch``.

It runs in everybody's processes, in torchrun's own and in DataLoader workers too. Without our switch it looks
at one environment variable and returns. With it, it only waits for the first process group. Only then is the
switch's value checked, so that a bad one is reported by the ranks and by nobody else.
"""

import os

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing's own constant would be an import
    from types import ModuleType
    from typing import Any

_SWITCH = "OTEL_PYTHON_TORCHDIST_ENABLED"
_C10D = "torch.distributed.distributed_c10d"
# A first group passes by one of them: ``init_device_mesh`` goes around ``init_process_group``, and some
# libraries make the default group themselves.
_CREATORS = ("_new_process_group_helper", "_update_default_pg")


def autoload() -> None:
    """Prepare to switch on with the first process group, if the environment asks for it; never raises."""
    if os.environ.get(_SWITCH, "").strip().lower() in ("", "false"):
        return
    try:
        _when_c10d_is_imported()
    except Exception as error:
        _report(error)


def _when_c10d_is_imported() -> None:
    import sys

    c10d = sys.modules.get(_C10D)
    if c10d is not None:
        _FirstGroup(c10d).await_it()
        return
    # torch 2.8 to 2.13 import it by themselves; a build without torch.distributed never will.
    from wrapt import register_post_import_hook

    register_post_import_hook(_on_late_import, _C10D)


def _on_late_import(c10d: "ModuleType") -> None:
    try:
        _FirstGroup(c10d).await_it()
    except Exception as error:
        _report(error)


class _FirstGroup:
    """Stands in for c10d's creators of groups until one of them is called, then takes itself out.

    It is inherited by a forked child, so a rank that a notebook launcher forks is a rank like any other.
    """

    def __init__(self, c10d: "ModuleType") -> None:
        self._c10d = c10d
        self._originals = {name: getattr(c10d, name) for name in _CREATORS}
        self._stand_ins = {name: self._stand_in(name) for name in _CREATORS}
        self._waiting = True

    def await_it(self) -> None:
        for name, stand_in in self._stand_ins.items():
            setattr(self._c10d, name, stand_in)

    def _stand_in(self, name: str) -> "Any":
        from functools import wraps

        @wraps(self._originals[name])
        def creator(*args: "Any", **kwargs: "Any") -> "Any":
            return self._creator(name)(*args, **kwargs)

        return creator

    def _creator(self, name: str) -> "Any":
        """Switch on at the first call; return what to call in the stand-in's place."""
        if not self._waiting:
            return self._originals[name]
        self._waiting = False
        reachable = self._leave()
        _switch_on()
        # By now capture's creator stands there. A foreign wrapper of our stand-in is on the stack already.
        return getattr(self._c10d, name) if name in reachable else self._originals[name]

    def _leave(self) -> set[str]:
        """Put the originals back; return the names where nobody had wrapped the stand-in."""
        unwrapped = {
            name for name, stand_in in self._stand_ins.items() if getattr(self._c10d, name) is stand_in
        }
        for name in unwrapped:
            setattr(self._c10d, name, self._originals[name])
        return unwrapped


def _switch_on() -> None:
    try:
        from otel_torchdist.instrumentor import switch_on_from_environment

        switch_on_from_environment()
    except Exception as error:
        _report(error)


def _report(error: Exception) -> None:
    from otel_torchdist import _guard

    _guard.report("autoload", error)
