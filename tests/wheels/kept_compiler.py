"""A compiler that compiles a library only once: `python kept_compiler.py FOLDER COMPILER ARGUMENT...`.

Compiling torch's headers takes 15 s of a core. What has been compiled is kept in the folder, under a key of all that it
depends on: the command, the compiler, torch, our sources, and the programs that compile them.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from otel_torchdist.native import build as compiling
from tests.support.repository import REPOSITORY


def main() -> None:
    """Compile, or copy what was made of the same before."""
    folder, *command = sys.argv[1:]
    sources = [argument for argument in command if argument.endswith(".cc")]
    if not sources:
        os.execvp(command[0], command)
    made = Path(command[command.index("-o") + 1])
    kept = Path(folder) / f"{key_of(command, [Path(source) for source in sources], made.parent)}.so"
    if not kept.is_file():
        done = subprocess.run(command, check=False)
        if done.returncode:
            sys.exit(done.returncode)
        kept.parent.mkdir(parents=True, exist_ok=True)
        part = kept.with_suffix(f".{os.getpid()}")
        shutil.copy(made, part)
        part.replace(kept)
    shutil.copy(kept, made)


def key_of(command: list[str], sources: list[Path], scratch: Path) -> str:
    """A key of all that the library depends on; the scratch folder has another name each time."""
    known = hashlib.sha256(" ".join(command).replace(str(scratch), "").encode())
    known.update(version("torch").encode())
    known.update(subprocess.run([command[0], "--version"], capture_output=True, check=True).stdout)
    programs = [Path(compiling.__file__), *REPOSITORY.joinpath("wheels").glob("*.py")]
    for file in (*sorted(programs), *sorted(compiling.SOURCES.iterdir()), *sources):
        if file.is_file():
            known.update(file.read_bytes().replace(str(scratch).encode(), b""))
    return known.hexdigest()[:16]


if __name__ == "__main__":
    main()
