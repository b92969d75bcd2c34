"""Calls functions once modules have been imported. Imports only the standard library.

The package `wrapt` can do this too, but would take 0.6 MB of memory in each rank.
"""

import sys
import threading
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

_lock = threading.RLock()


def when_imported(name: str, function: Callable[[ModuleType], object]) -> None:
    """Call a function with a module: now if the module has been imported, else right after its import.

    An exception of the function is raised by the import.
    """
    with _lock:
        module = sys.modules.get(name)
        if module is None:
            _finder().waiting.setdefault(name, []).append(function)
    if module is not None:
        function(module)


class _Finder:
    """The first finder of this process. It lets the other finders find a module, and wraps the module's loader.

    Attributes:
        waiting: Functions to call, by the name of the module.
    """

    def __init__(self) -> None:
        self.waiting: dict[str, list[Callable[[ModuleType], object]]] = {}
        self._searched: set[tuple[int, str]] = set()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a module with waiting functions; None for all other modules."""
        search = threading.get_ident(), fullname
        if fullname not in self.waiting or search in self._searched:
            return None
        self._searched.add(search)
        try:
            spec = find_spec(fullname)
        finally:
            self._searched.discard(search)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            self._wrap_loader(spec.loader, fullname)
        return spec

    def _wrap_loader(self, loader: Any, name: str) -> None:
        """Wrap `exec_module` of a loader, not the loader itself: a module's loader may be asked for its source."""
        original = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            if module.__name__ == name and loader.__dict__.get("exec_module") is exec_module:
                del loader.exec_module
            original(module)
            if module.__name__ == name:
                self._call_functions(module)

        loader.exec_module = exec_module

    def _call_functions(self, module: ModuleType) -> None:
        with _lock:
            functions = self.waiting.pop(module.__name__, [])
        for function in functions:
            function(module)


def _finder() -> _Finder:
    finder = next((finder for finder in sys.meta_path if isinstance(finder, _Finder)), None)
    if finder is None:
        finder = _Finder()
        sys.meta_path.insert(0, finder)
    return finder
