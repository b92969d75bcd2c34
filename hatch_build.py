"""Makes the wheel one for a platform where native libraries for it have been built: `make wheels`, `make install`.

Everywhere else, as with `pip install .`, the wheel is one for all machines, and nothing is compiled.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# A folder with the libraries for one platform, whose name it has, such as `manylinux_2_28_x86_64`.
LIBRARIES = "OTEL_TORCHDIST_WHEEL_LIBRARIES"


class LibrariesHook(BuildHookInterface[Any]):
    """Adds the libraries to a wheel, and gives it its tag."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Do so if there are any; `version` is `editable` for an installation that uses the sources where they are.

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
