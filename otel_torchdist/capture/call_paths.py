"""Finds the frames that led to a call site: once for each way in which calls from there are recorded, not per call.

Walking 20 frames takes 2 to 3 µs, which is nothing where a call is planned and too much for each call. Frames of
libraries are folded: a trainer's twenty frames between two lines of the program say less than its name.
"""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Final

from otel_torchdist.capture.call_sites import CallSiteKey, describe_code
from otel_torchdist.tape.names.model import MAX_FRAMES, OTHER, SPARE_OF_CALL_SITES, SPARE_OF_LABELS, CallPathName

if TYPE_CHECKING:
    from otel_torchdist.tape.names.writer import NamesWriter

MAX_CACHED: Final = 1_024
_OURS: Final = __name__.partition(".")[0]
_INSTALLED: Final = ("/site-packages/", "/dist-packages/")
_STANDARD: Final = (f"{sysconfig.get_path('stdlib')}/", "<frozen ")
STANDARD_LIBRARY: Final = "python"
_frame: Final = sys._getframe  # pyright: ignore[reportPrivateUsage]  # its only name


class CallPaths:
    """The paths that one tape's names describe."""

    def __init__(self, names: NamesWriter) -> None:
        """Describe paths in a dictionary."""
        self._names = names
        self._known: dict[int, tuple[int, ...] | None] = {}
        self._packages: dict[int, tuple[CodeType, str]] = {}

    def note(self, site: CallSiteKey, site_id: int) -> None:
        """Record which frames have led to a call site; a second path to it only marks that there are several.

        Args:
            site: The call site, which is on the calling thread's stack.
            site_id: Its name id.
        """
        if site_id == OTHER or self._known.get(site_id, ()) is None:
            return
        frames = self._ids(list(_callers(site)))
        known = self._known.setdefault(site_id, frames)
        if known == frames:
            self._names.find_room(CallPathName(site_id, frames), SPARE_OF_LABELS)
        else:
            self._known[site_id] = None
            self._names.find_room(CallPathName(site_id, known or (), varies=True), SPARE_OF_LABELS)

    def _ids(self, frames: list[FrameType]) -> tuple[int, ...]:
        """Name ids of frames, innermost first, each run of library frames as one text."""
        found: list[int] = []
        packages: list[str] = []
        for frame in frames:
            package = self._package(frame)
            if package:
                packages += [package] * (package not in packages)
                continue
            if packages:
                found.append(self._names.find_room(f"… {', '.join(packages)} …", SPARE_OF_LABELS))
                packages = []
            site = describe_code(frame.f_code, frame.f_lasti)
            found.append(self._names.find_room(site, SPARE_OF_CALL_SITES))
        return tuple(one for one in found if one != OTHER)

    def _package(self, frame: FrameType) -> str:
        """The library that a frame belongs to; '' for the program's own code."""
        code = frame.f_code
        known = self._packages.get(id(code))
        if known is not None:
            return known[1]
        if len(self._packages) >= MAX_CACHED:
            self._packages.clear()
        package = package_of(code.co_filename, str(frame.f_globals.get("__name__", "")).partition(".")[0])
        self._packages[id(code)] = (code, package)  # which is kept, so that no other code gets its id
        return package


def _callers(site: CallSiteKey) -> Iterator[FrameType]:
    """Yield the frames behind a call site, as far as they are in reach."""
    frame: FrameType | None = _frame(1)
    for _ in range(MAX_FRAMES):
        if frame is None or (id(frame.f_code), frame.f_lasti) == site:
            break
        frame = frame.f_back
    for _ in range(MAX_FRAMES):
        frame = frame.f_back if frame is not None else None
        if frame is None:
            break
        yield frame


def package_of(file: str, module: str) -> str:
    """The library that code belongs to, by its file and its top-level module; '' for the program's own code."""
    if module in ("torch", _OURS):
        return module
    for installed in _INSTALLED:
        if installed in file:  # by its folder: a distribution may install several modules
            return file.rpartition(installed)[2].partition("/")[0].removesuffix(".py")
    # By modules too, for frozen applications have no files. A script is `__main__` wherever it lies.
    is_standard = file.startswith(_STANDARD) or module in sys.stdlib_module_names - {"__main__"}
    return STANDARD_LIBRARY if is_standard and module != "__main__" else ""
