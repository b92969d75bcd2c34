"""Reads texts as files, as users pass them."""

from __future__ import annotations

from pathlib import Path

from otel_torchdist.sources.evidence.files import read_files
from otel_torchdist.sources.evidence.statements import Evidence

DATA = Path(__file__).parent / "data"


def read(folder: Path, *texts: str | bytes, name: str = "job{}.log") -> Evidence:
    """Write each text into a file of its own and read them."""
    paths: list[Path] = []
    for number, text in enumerate(texts):
        path = folder / name.format(number)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        paths.append(path)
    return read_files(paths)


def read_data(*names: str) -> Evidence:
    """Read files of `data`."""
    return read_files(DATA / name for name in names)
