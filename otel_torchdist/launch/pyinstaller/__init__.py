"""The PyInstaller plug-in, found through the entry point ``pyinstaller40``."""

from pathlib import Path


def hook_directories() -> list[str]:
    """Return the folders of our PyInstaller hooks."""
    return [str(Path(__file__).parent)]
