"""What PyInstaller cannot see: torch finds us by our metadata, modules are imported by name, libraries are loaded.

The command line stays out: an application has none, and would get typer and rich.
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
