"""A program that a release must run in an empty environment, without torch: prints as JSON what it has found.

It imports each module of the installed package, so a file that the wheel lacks, or that this Python cannot compile, is
found. Only packages that are optional may be missing.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
from importlib.metadata import version
from pathlib import Path

_OPTIONAL = ("torch", "pyarrow", "pynvml", "PyInstaller", "mcp", "mcp_types", "anyio")
_PROGRAMS = ("__main__", "otel_torchdist.cli.demo.train")
"""Modules that run when imported."""


def main() -> None:
    """Import everything, and print the result."""
    import otel_torchdist

    modules = [
        found.name for found in pkgutil.walk_packages(otel_torchdist.__path__, "otel_torchdist.", onerror=_ignore)
    ]
    missing: dict[str, str] = {}
    for name in modules:
        if name.endswith(_PROGRAMS):
            continue
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] not in _OPTIONAL:
                missing[name] = str(error)
    print(
        json.dumps(
            {
                "version": version("otel-torchdist"),
                "sdk": version("opentelemetry-sdk"),
                "modules": len(modules),
                "missing": missing,
                "libraries": sorted(
                    path.name for path in (Path(otel_torchdist.__file__).parent / "native" / "libraries").glob("*.so")
                ),
            }
        )
    )


def _ignore(name: str) -> None:
    """Accept packages that need an optional one; pkgutil calls this while an ImportError is handled."""


if __name__ == "__main__":
    main()
