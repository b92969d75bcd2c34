"""Which modules may import which: checked in the sources by import-linter, and once more in running processes."""

import ast
import inspect
import subprocess
import sys

import pytest

from otel_torchdist import autoload
from tests.support.repository import REPOSITORY

IMPORT_ALL = """
import sys
from importlib import import_module
from pkgutil import walk_packages

for name in sys.argv[2:]:
    package = import_module(name)
    for module in walk_packages(getattr(package, "__path__", []), name + "."):
        import_module(module.name)
forbidden = sys.argv[1].split(",")
print(*sorted({name.split(".")[0] for name in sys.modules} & set(forbidden)))
"""


def run(*command: str) -> str:
    """Run a command in the project's root and return what it prints; fail with all of it."""
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_contracts() -> None:
    """The contracts in pyproject.toml hold for every import in the sources, in functions too."""
    output = run(sys.executable, "-c", "from importlinter.cli import lint_imports_command as main; main()")
    assert " 0 broken" in output


@pytest.mark.process
@pytest.mark.parametrize(
    ("packages", "forbidden"),
    [
        (["tape", "system", "config", "guard"], "torch,opentelemetry,prometheus_client,numpy"),
        (["capture"], "opentelemetry,prometheus_client"),
        (["agent", "analysis", "judge", "model", "node", "show", "sources", "telemetry"], "torch,numpy"),
        (["runs"], "torch,numpy,pyarrow,altair,typer,rich"),
    ],
)
def test_imports_when_run(packages: list[str], forbidden: str) -> None:
    """Importing all modules of a side loads nothing that the side must not need, by whichever path."""
    names = [f"otel_torchdist.{package}" for package in packages]
    assert run(sys.executable, "-c", IMPORT_ALL, forbidden, *names).split() == []


def test_autoload_imports_only_os() -> None:
    """The entry point, which runs in every ``import torch``, imports nothing but ``os`` at module level."""
    statements = ast.parse(inspect.getsource(autoload)).body
    imports = [ast.unparse(node) for node in statements if isinstance(node, ast.Import | ast.ImportFrom)]
    assert imports == ["import os"]


@pytest.mark.process
def test_public_names() -> None:
    """The public names are resolved at their first use, are listed before it, and an unknown one is an error."""
    code = """
import otel_torchdist
classes = {"Config", "Hooks", "OperationCall", "StalledRank", "StalledRun", "TorchDistInstrumentor"}
assert classes | {"data_wait", "expect_wait", "mark_step"} == set(otel_torchdist.__all__)
assert set(otel_torchdist.__all__) <= set(dir(otel_torchdist))
for name in otel_torchdist.__all__:
    assert getattr(otel_torchdist, name).__name__ == name
from otel_torchdist import TorchDistInstrumentor, mark_step
assert otel_torchdist.mark_step is mark_step
assert TorchDistInstrumentor.__module__ == "otel_torchdist.instrumentor"
try:
    otel_torchdist.nothing
except AttributeError as error:
    print(error)
"""
    assert run(sys.executable, "-c", code) == "module 'otel_torchdist' has no attribute 'nothing'\n"


def test_imports_without_torch() -> None:
    """Where torch is not installed, the package and its instrumentor import all the same."""
    code = """
import sys
sys.modules["torch"] = None
from otel_torchdist import TorchDistInstrumentor
print(TorchDistInstrumentor.__name__)
"""
    assert run(sys.executable, "-c", code) == "TorchDistInstrumentor\n"
