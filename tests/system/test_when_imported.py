"""Functions that are called when a module has been imported."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from otel_torchdist.system.when_imported import when_imported

NAME = "waited_for_in_tests"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of modules that can be imported; one of them is the package that tests wait for."""
    (tmp_path / NAME).mkdir()
    (tmp_path / NAME / "__init__.py").write_text("seen = []\n")
    (tmp_path / NAME / "part.py").write_text("def double(number):\n    return 2 * number\n")
    (tmp_path / NAME / "fails.py").write_text("import os\nassert 'IS_WHOLE' in os.environ\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] == NAME]:
        del sys.modules[name]


def test_later() -> None:
    """A function is called once, with the module as it has been run, by the import that runs it."""
    found: list[object] = []
    when_imported(f"{NAME}.part", lambda module: found.append(module.double(4)))
    importlib.import_module(NAME)
    assert found == []
    importlib.import_module(f"{NAME}.part")
    importlib.import_module(f"{NAME}.part")
    importlib.reload(sys.modules[f"{NAME}.part"])
    assert found == [8]


def test_at_once() -> None:
    """For a module that is there the function is called at once."""
    found: list[ModuleType] = []
    module = importlib.import_module(NAME)
    when_imported(NAME, found.append)
    assert found == [module]


def test_several() -> None:
    """Several functions are called in the order in which they came, each for its module."""
    found: list[str] = []
    when_imported(f"{NAME}.part", lambda _: found.append("first"))
    when_imported(f"{NAME}.part", lambda _: found.append("second"))
    when_imported(NAME, lambda _: found.append("package"))
    importlib.import_module(f"{NAME}.part")
    assert found == ["package", "first", "second"]


def test_module_is_as_ever() -> None:
    """The module has its own loader, without anything of ours, and its source can be read."""
    when_imported(f"{NAME}.part", lambda _: None)
    module = importlib.import_module(f"{NAME}.part")
    assert module.__spec__ is not None
    assert module.__loader__ is module.__spec__.loader
    assert "exec_module" not in vars(module.__loader__)
    assert inspect.getsource(module.double).startswith("def double")


def test_failed_import(monkeypatch: pytest.MonkeyPatch) -> None:
    """An import that fails calls nothing, and the next one that succeeds does."""
    found: list[ModuleType] = []
    when_imported(f"{NAME}.fails", found.append)
    with pytest.raises(AssertionError):
        importlib.import_module(f"{NAME}.fails")
    assert found == []
    monkeypatch.setenv("IS_WHOLE", "true")
    assert found == [importlib.import_module(f"{NAME}.fails")]


def test_missing_module() -> None:
    """A module that does not exist is missing as without us."""
    when_imported(f"{NAME}.missing", lambda _: None)
    with pytest.raises(ModuleNotFoundError, match="missing"):
        importlib.import_module(f"{NAME}.missing")
