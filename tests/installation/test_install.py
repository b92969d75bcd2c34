"""`make install`, into environments as users have them, with neither network nor the real compiler."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Final

import pytest
import torch

from installation.__main__ import OLDEST_PYTHON
from installation.self_check import Check
from otel_torchdist.native.library import library_name
from release.environments import site_packages
from tests.native.building.test_build_native import compiler
from tests.support.environments import at_hand, make_environment, run_program
from tests.support.repository import REPOSITORY

TIMES: Final = 20
OFFLINE: Final = {
    **{"PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "false", "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
    **{"UV_OFFLINE": "1", "UV_NO_BUILD_ISOLATION": "1", "PIP_NO_CACHE_DIR": "1"},
}
needs_make: Final = pytest.mark.skipif(not shutil.which("make"), reason="there is no make")
needs_pip: Final = pytest.mark.skipif(not importlib.util.find_spec("pip"), reason="this environment has no pip")
pytestmark = [needs_make, needs_pip, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Everything that a user of torch may have, pip and hatchling too."""
    return at_hand(tmp_path_factory.mktemp("packages") / "at-hand")


def install(python: Path, home: Path, environ: Mapping[str, str] | None = None) -> tuple[int, list[str], str]:
    """Run `make install` in a shell without compiler; returns its exit code, and the lines and errors it prints."""
    home.mkdir(exist_ok=True)
    if not (home / "cp").exists():  # what stands in for a compiler copies
        (home / "cp").symlink_to(str(shutil.which("cp")))
    given = {"PATH": str(home), "HOME": str(home), **OFFLINE, **(environ or {})}
    command = [str(shutil.which("make")), "install", f"PYTHON={python}"]
    done = subprocess.run(command, cwd=REPOSITORY, env=given, capture_output=True, text=True, timeout=300, check=False)
    return done.returncode, done.stdout.splitlines(), done.stderr


def started(python: Path) -> str:
    """The beginning of the line that reports success."""
    return f"otel_torchdist {version('otel-torchdist')} is installed for {python}"


@pytest.mark.thorough
def test_native(packages: Path, tmp_path: Path) -> None:
    """With a compiler a library records that is a part of the package; repeating it is harmless, pip removes all."""
    environment, home = tmp_path / "venv", tmp_path / "home"
    python = make_environment(environment, packages)
    before = {*site_packages(environment).iterdir()}
    library = site_packages(environment) / "otel_torchdist" / "native" / "libraries" / library_name(torch.__version__)
    expected = f"{started(python)}: it records torch {torch.__version__} natively, with {library}"
    for _ in range(2):
        code, lines, errors = install(python, home, {"CXX": str(compiler(tmp_path))})
        assert (code, lines[-1]) == (0, expected), errors
    assert len((tmp_path / "started").read_text().splitlines()) == 2
    ran = run_program(python, TIMES, tmp_path)
    assert ran.log == [f"recording natively, with {library}"]
    assert len(ran.tape.named("all_reduce")) == TIMES
    assert [*home.rglob("*.so")] == []  # nothing in the cache of this user
    remove = [str(python), "-m", "pip", "uninstall", "--yes", "--quiet", "otel-torchdist"]
    subprocess.run(remove, env={"PATH": "", **OFFLINE}, cwd=tmp_path, check=True)
    assert {*site_packages(environment).iterdir()} == before


@pytest.mark.thorough
def test_no_compiler_and_no_pip(packages: Path, tmp_path: Path) -> None:
    """Where there is no pip uv installs, and where there is no compiler Python records: a line, and success."""
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if not uv:
        pytest.skip("there is no uv")
    without_pip = at_hand(tmp_path / "at-hand", "pip")
    environment, home = tmp_path / "venv", tmp_path / "home"
    python = make_environment(environment, without_pip)
    for described in packages.glob("*.dist-info"):  # uv sees an environment's own folder only
        shutil.copytree(described, site_packages(environment) / described.name, ignore=lambda *_: ["RECORD"])
    home.mkdir()
    (home / "uv").symlink_to(uv)
    code, lines, errors = install(python, home)
    reason = "there is no C++ compiler (g++, clang++, or what CXX names)"
    expected = f"{started(python)}: Python records torch {torch.__version__}, because {reason}"
    assert (code, lines[-1:]) == (0, [expected]), errors
    assert "error" not in errors.lower()


@pytest.mark.thorough
def test_neither_pip_nor_uv(packages: Path, tmp_path: Path) -> None:
    """A pip of our own installs where there is none; an environment without torch is told so, and gets none."""
    environment = tmp_path / "venv"
    python = make_environment(environment, at_hand(tmp_path / "at-hand", "pip", "torch"))
    code, lines, errors = install(python, tmp_path / "home")
    reason = "No module named 'torch'"
    expected = f"{started(python)}, where torch cannot be imported ({reason}): install torch, then repeat this"
    assert (code, lines[-1:]) == (0, [expected]), errors
    own = {path.name.partition("-")[0] for path in site_packages(environment).glob("*.dist-info")}
    assert own == {"otel_torchdist"}


def test_old_torch_stays(tmp_path: Path) -> None:
    """A torch that is too old is neither upgraded nor taken for a success."""
    environment = tmp_path / "venv"
    python = make_environment(environment, at_hand(tmp_path / "at-hand", "torch"))
    own = site_packages(environment)
    (own / "torch" / "distributed").mkdir(parents=True)
    (own / "torch" / "__init__.py").write_text("__version__ = '2.7.1'\n")
    (own / "torch" / "distributed" / "__init__.py").write_text("def is_available() -> bool:\n    return False\n")
    (own / "torch-2.7.1.dist-info").mkdir()
    (own / "torch-2.7.1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.7.1\n")
    before = {path: path.read_bytes() for path in own.glob("torch*/**/*") if path.is_file()}
    code, lines, errors = install(python, tmp_path / "home")
    reason = "this torch has no torch.distributed"
    assert (code, lines[-1:]) == (2, [f"{started(python)}, but does not record torch 2.7.1: {reason}"]), errors
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.parametrize(
    ("found", "rest"),
    [
        (
            Check("0.1.0", "2.15.0", True, "/home/me/.cache/x.so", is_own=False),
            ": it records torch 2.15.0 natively, with /home/me/.cache/x.so (of `otel-torchdist build-native`, which "
            "comes before the one installed now)",
        ),
        (
            Check("0.1.0", "of unknown version", False, trouble="RuntimeError: no gloo"),
            ", but does not record torch of unknown version: RuntimeError: no gloo",
        ),
    ],
)
def test_other_outcomes(found: Check, rest: str) -> None:
    """A library of the user's cache is told from the one installed, and a call that fails gives its reason."""
    assert found.sentence("") == f"otel_torchdist 0.1.0 is installed for {sys.executable}{rest}"


def test_oldest_python() -> None:
    """The oldest Python that is accepted is that of the package, of which pip says so only after minutes."""
    oldest = ".".join(map(str, OLDEST_PYTHON))
    assert f'requires-python = ">={oldest}"' in (REPOSITORY / "pyproject.toml").read_text().splitlines()


def test_managed_by_the_system(packages: Path, tmp_path: Path) -> None:
    """Where the system's packages are not pip's, pip's own message is all, and nothing is compiled."""
    library = Path(sysconfig.get_path("stdlib"))
    system = tmp_path / "system" / "lib" / library.name
    (system / "site-packages").mkdir(parents=True)
    for part in library.iterdir():
        if part.name != "site-packages":
            (system / part.name).symlink_to(part)
    (system / "site-packages" / "at-hand.pth").write_text(f"{packages}\n")
    (system / "EXTERNALLY-MANAGED").write_text("[externally-managed]\nError=Ask your administrator.\n")
    base = Path(sys.base_exec_prefix) / "bin" / f"python3.{sys.version_info.minor}"
    environ = {"PYTHONHOME": str(tmp_path / "system"), "CXX": str(compiler(tmp_path))}
    code, lines, errors = install(base, tmp_path / "home", environ)
    assert code == 2
    assert lines == []
    assert errors.startswith("error: externally-managed-environment\n")
    assert "Ask your administrator." in errors
    assert "Traceback" not in errors
    assert not (tmp_path / "started").exists()
