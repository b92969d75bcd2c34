"""Build hook that adds native libraries to a wheel and tags it for their platform: `make wheels`, `make install`.

Otherwise, as with `pip install .`, the wheel is for all platforms, and nothing is compiled.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# Variable with the path of a folder of libraries. The folder is named after their platform: `manylinux_2_28_x86_64`.
LIBRARIES = "OTEL_TORCHDIST_WHEEL_LIBRARIES"


class LibrariesHook(BuildHookInterface[Any]):
    """A build hook that adds the libraries to a wheel and sets the wheel's tag."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the libraries, if there are any and the installation is not editable (`version` is `editable` then).

        Raises:
            ValueError: The folder has no libraries.
        """
        chosen = os.environ.get(LIBRARIES, "")
        if not chosen or version == "editable":
            return
        folder = Path(chosen)
        libraries = sorted(folder.glob("otel_torchdist-torch*.so"))
        if not libraries:
            raise ValueError(f"{LIBRARIES}: {folder} has no libraries")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{folder.name}"
        for library in libraries:
            build_data["force_include"][str(library)] = f"otel_torchdist/native/libraries/{library.name}"
