"""Collects files that PyInstaller cannot detect: package metadata, modules imported by name, and native libraries.

The command line is excluded: an application does not need it, nor typer and rich.
"""

from PyInstaller.utils.hooks import (  # pyright: ignore  # installed where applications are made
    collect_data_files,
    collect_dynamic_libs,
    collect_submodules,
    copy_metadata,
)

_LEFT_OUT = ("otel_torchdist.cli", "otel_torchdist.launch.pyinstaller")

hiddenimports = collect_submodules("otel_torchdist", filter=lambda name: not name.startswith(_LEFT_OUT))  # pyright: ignore
datas = copy_metadata("otel-torchdist") + collect_data_files("otel_torchdist")  # pyright: ignore
binaries = collect_dynamic_libs("otel_torchdist")  # pyright: ignore
