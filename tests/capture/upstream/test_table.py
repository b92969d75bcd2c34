"""Everything private of torch that the package uses stands in the table, and the table holds nothing else."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import torch

import otel_torchdist
from otel_torchdist.capture.upstream import compiled, core, launch, rpc, training
from otel_torchdist.capture.upstream.headers import FUNCTIONS, HEADERS
from otel_torchdist.capture.upstream.symbol import TorchSymbol, first_missing, release_of, warn_once
from tests.capture.upstream.needed import NEEDED_BY_TORCH

assert otel_torchdist.__file__
PACKAGE = Path(otel_torchdist.__file__).parent
TABLE = PACKAGE / "capture" / "upstream"
ROOMS = ("capture", "launch", "native", "system", "autoload.py", "guard.py", "instrumentor.py", "rescue.py")
SYMBOLS = (*core.SYMBOLS, *training.SYMBOLS, *compiled.SYMBOLS, *rpc.SYMBOLS, *launch.SYMBOLS)
OF_PYTHON = {
    *("_all_tasks", "_callbacks", "_children", "_fut_waiter", "_run_until_complete_cb", "_scheduled_tasks"),
    *("_bootstrap", "_current_frames", "_exit", "_getframe", "_is_gil_enabled", "_replace", "_thread_id"),
    *("_frozen_importlib", "_PyRuntime"),
}
"""Private names of Python and its standard library."""


def sources() -> Iterator[Path]:
    """Return the files of the package that run in processes with torch."""
    for room in ROOMS:
        path = PACKAGE / room
        yield from (path,) if path.is_file() else path.rglob("*.py")


def own_names(trees: Mapping[Path, ast.AST]) -> set[str]:
    """Return the private names that the package defines itself."""
    names = set[str]()
    for node in (node for tree in trees.values() for node in ast.walk(tree)):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store()):
                names.add(name)
            case ast.Name(id=name, ctx=ast.Store()):
                names.add(name)
            case ast.Assign(targets=[ast.Name(id="__slots__")], value=value):
                names.update(str(item.value) for item in ast.walk(value) if isinstance(item, ast.Constant))
            case _:
                pass
    return names


def private_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the private names that a file reads: attributes, texts that are names, and modules of torch."""
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="self" | "cls")):
                pass
            case ast.Constant() if id(node) in parts:  # a part of a text is no name
                pass
            case ast.Attribute(attr=name, lineno=line) if re.fullmatch("_[A-Za-z]\\w*", name):
                yield line, name
            case ast.Constant(value=str(text), lineno=line) if re.fullmatch("_[A-Za-z]\\w*", text):
                yield line, text
            case ast.Constant(value=str(text), lineno=line) if re.fullmatch(r"torch(\.\w+)*\._\w+(\.\w+)*", text):
                yield line, text
            case ast.ImportFrom(module=str(module), names=names, lineno=line) if module.startswith("torch"):
                imported = f"{module}.{names[0].name}"
                if "._" in imported:
                    yield line, imported
            case _:
                pass


def test_every_private_name_is_in_the_table() -> None:
    """Only the files of the table name a private symbol of torch, in an attribute, a text or an import."""
    trees = {path: ast.parse(path.read_text()) for path in sources()}
    known = own_names(trees) | OF_PYTHON
    found = [
        f"{path.relative_to(PACKAGE)}:{line} {name}"
        for path, tree in trees.items()
        if TABLE not in path.parents
        for line, name in private_names(tree)
        if name not in known
    ]
    assert found == []


def test_own_names_hide_no_name_of_the_table() -> None:
    """A name of the table that the package also uses for something of its own is not read from anything else."""
    trees = {path: ast.parse(path.read_text()) for path in sources()}
    names = {symbol.name for symbol in SYMBOLS} & own_names(trees)
    read = [
        f"{path.relative_to(PACKAGE)}:{line} {name}"
        for path, tree in trees.items()
        if TABLE not in path.parents
        for line, name in private_names(tree)
        if name in names
    ]
    assert read == []


def test_every_row_is_used() -> None:
    """Each row of the table is referred to by the code: a symbol that nothing uses any more has no row."""
    text = "\n".join(path.read_text() for path in sources() if TABLE not in path.parents)
    rows = {name: value for module in (core, training, compiled, rpc, launch) for name, value in vars(module).items()}
    grouped = {symbol for group in (rpc.NEEDED, compiled.SKIPPING) for symbol in group}
    required = set(core.REQUIRED)
    unused = [
        name
        for name, value in rows.items()
        if isinstance(value, TorchSymbol)
        and value not in grouped | required
        and not re.search(rf"\b(core|training|compiled|rpc|launch|symbols)\.{name}\b", text)
    ]
    assert unused == []


def test_each_symbol_has_one_row() -> None:
    """No symbol is described twice, and each row says what it is for and what is lost without it."""
    paths = [symbol.path for symbol in SYMBOLS]
    assert sorted(set(paths)) == sorted(paths)
    assert [symbol.path for symbol in SYMBOLS if not (symbol.reason and symbol.without)] == []
    assert set(NEEDED_BY_TORCH) - set(paths) == set()


@pytest.mark.parametrize("symbol", SYMBOLS, ids=lambda symbol: symbol.path)
def test_this_torch_has_it(symbol: TorchSymbol) -> None:
    """The installed torch has each symbol that the table promises for its version."""
    installed = release_of(torch.__version__)
    if installed < release_of(symbol.since) or (symbol.until and installed > release_of(symbol.until)):
        pytest.skip(f"torch {torch.__version__} is not promised to have it")
    if symbol.builds:
        pytest.skip(f"only {symbol.builds} builds have it")
    importlib.import_module(symbol.module)
    assert symbol.holder is not None
    assert symbol.of_instances or hasattr(symbol.holder, symbol.name)


def test_headers() -> None:
    """The C++ sources include the headers of the table and no other of torch, and use each symbol that it lists."""
    source = PACKAGE / "native" / "source"
    text = "\n".join(path.read_text() for path in (*source.glob("*.cc"), *source.glob("*.h")))
    included = set(re.findall(r"#include <((?:torch|ATen|c10)/.*?)>", text))
    assert included == {header.path for header in HEADERS}
    listed = [symbol.rpartition("::")[2] for header in HEADERS for symbol in header.symbols]
    assert [name for name in listed if not re.search(rf"\b{name}\b", text)] == []
    assert len({function.mangled for function in FUNCTIONS}) == len(FUNCTIONS)


def test_older_torch_without_it_is_not_reported(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A symbol that older versions lack is reported only in versions that are expected to have it, and once."""
    symbol = TorchSymbol("torch", "of_tomorrow", "a test", "nothing is tested", since="2.13")
    warn_once.cache_clear()
    monkeypatch.setattr(torch, "__version__", "2.8.0+cpu")
    assert symbol.find() is None
    assert caplog.messages == []
    monkeypatch.setattr(torch, "__version__", "2.16.0.dev20261101+cu132")
    assert symbol.find() is None
    assert symbol.find() is None
    assert caplog.messages == ["this torch has no torch.of_tomorrow: nothing is tested"]
    assert first_missing(core.WORLD, symbol) is symbol
