"""Finds call paths, the frames that led to a call site, when a call is planned.

Walking 20 frames takes 2 to 3 µs: little for planning, too much for each call. Consecutive library frames become one
entry, because the name of a trainer says more than its twenty frames between two lines of user code.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING, Final, NamedTuple

from otel_torchdist.capture.core.call_sites import CallSiteKey, CallSites, describe_code, owner_of_code
from otel_torchdist.model.code_owner import FrameOwner, package_of
from otel_torchdist.model.names import MAX_FRAMES, OTHER, SPARE_OF_CALL_SITES, SPARE_OF_LABELS, CallPathName

if TYPE_CHECKING:
    from otel_torchdist.tape.names.writer import NamesWriter

MAX_PATHS: Final = 32
"""Maximum number of paths to one line. In a recursive walk over a tree, paths never repeat."""
_frame: Final = sys._getframe  # pyright: ignore[reportPrivateUsage]  # it has no public name


class _LinePaths(NamedTuple):
    """The paths to one line.

    Attributes:
        first: The frames of the first path.
        paths: Name ids of the paths, by the hash in the call site's key.
    """

    first: tuple[int, ...]
    paths: dict[int, int]


class CallPaths:
    """The call paths in one tape's names."""

    def __init__(self, names: NamesWriter, call_sites: CallSites) -> None:
        """Intern paths into a name dictionary."""
        self._names = names
        self._call_sites = call_sites
        self._by_line: dict[int, _LinePaths] = {}

    def name_of(self, site: CallSiteKey) -> int:
        """Return the name id of the call path to a site that was just found.

        Args:
            site: The call site, which is on the calling thread's stack.

        Returns:
            The id of the path; without room for it, the id of the call site. `OTHER` for `NOWHERE`.
        """
        site_id = self._call_sites.name_of(site)
        if site_id == OTHER:
            return OTHER
        line_paths = self._by_line.get(site_id)
        if line_paths is None:
            frames = self._intern_frames(_frames_outside(site))
            line_paths = self._by_line[site_id] = _LinePaths(frames, {})
        path = line_paths.paths.get(site[2])
        if path is not None:
            return path
        if len(line_paths.paths) >= MAX_PATHS:
            self._call_sites.ignore_callers(site)
            path = self._names.intern_optional(CallPathName(site_id, line_paths.first, varies=True), SPARE_OF_LABELS)
            return path or site_id
        path = (
            self._names.intern_optional(
                CallPathName(site_id, self._intern_frames(_frames_outside(site))), SPARE_OF_LABELS
            )
            or site_id
        )
        line_paths.paths[site[2]] = path
        return path

    def _intern_frames(self, frames: Iterator[FrameType]) -> tuple[int, ...]:
        """Return the name ids of frames, innermost first. Consecutive library frames become one name."""
        name_ids: list[int] = []
        packages: list[str] = []
        for frame in frames:
            code = frame.f_code
            if owner_of_code(code) is not FrameOwner.USER:
                package = package_of(code.co_filename) or "python"
                packages += [package] * (package not in packages)
                continue
            if packages:
                name_ids.append(self._names.intern_optional(f"… {', '.join(packages)} …", SPARE_OF_LABELS))
                packages = []
            site = describe_code(code, frame.f_lasti)
            name_ids.append(self._names.intern_optional(site, SPARE_OF_CALL_SITES))
        return tuple(name_id for name_id in name_ids if name_id != OTHER)


def _frames_outside(site: CallSiteKey) -> Iterator[FrameType]:
    """Yield up to `MAX_FRAMES` frames that have led to a call site, innermost first."""
    frame: FrameType | None = _frame(1)
    for _ in range(2 * MAX_FRAMES):
        if frame is None or (id(frame.f_code), frame.f_lasti) == site[:2]:
            break
        frame = frame.f_back
    for _ in range(MAX_FRAMES):
        frame = frame.f_back if frame is not None else None
        if frame is None:
            break
        yield frame
