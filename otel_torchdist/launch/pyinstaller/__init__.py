"""Tells PyInstaller what an application needs of us: it asks the entry point ``pyinstaller40`` of each package."""

from pathlib import Path


def hook_directories() -> list[str]:
    """Where the hooks for PyInstaller lie."""
    return [str(Path(__file__).parent)]
