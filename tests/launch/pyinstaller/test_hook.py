"""What PyInstaller takes along of us."""

from __future__ import annotations

import runpy
from importlib.metadata import entry_points
from pathlib import Path

from otel_torchdist.launch.pyinstaller import hook_directories
from tests.support.repository import REPOSITORY

HOOK = "hook-otel_torchdist.py"


def test_everything_is_taken_along_but_the_command_line() -> None:
    """Modules that are imported by name, our metadata, by which torch finds us, and what is no module."""
    [entry] = (found for found in entry_points(group="pyinstaller40") if found.value.startswith("otel_torchdist."))
    assert entry.load() is hook_directories
    [directory] = hook_directories()
    hook = runpy.run_path(str(Path(directory) / HOOK))
    package = REPOSITORY / "otel_torchdist"
    files = [path.relative_to(REPOSITORY).with_suffix("") for path in package.rglob("*.py")]
    modules = {".".join(path.parts).removesuffix(".__init__") for path in files if "-" not in path.name}
    left_out = {
        name for name in modules if name.startswith(("otel_torchdist.cli", "otel_torchdist.launch.pyinstaller"))
    }
    assert set(hook["hiddenimports"]) == modules - left_out
    assert any(Path(to).name.startswith("otel_torchdist-") for _, to in hook["datas"])
    assert {Path(path).name for path, _ in hook["datas"]} >= {"kernel.cc", "py.typed"}
