"""The wheel has the pages that agents serve at `/docs`."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

from otel_torchdist.show.serving.docs import NAMES
from tests.support.repository import REPOSITORY


def test_pages_are_in_the_wheel(tmp_path: Path) -> None:
    """A wheel that hatchling builds of this checkout can show each page, without the checkout."""
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)]
    subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True, timeout=120)
    [wheel] = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as content:
        content.extractall(tmp_path / "installed")
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from otel_torchdist.show.serving import docs\n"
        "assert docs.__file__.startswith(sys.argv[1]), docs.__file__\n"
        "print(*(name for name in docs.NAMES if '<h1' in docs.page_of(name).body))"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "installed")]
    done = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == list(NAMES)
