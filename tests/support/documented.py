"""Mistakes in the commands of a page: what is named there must exist."""

from __future__ import annotations

import importlib.util
import re
import shlex
import textwrap
from collections.abc import Callable, Iterator
from typing import Any, Final

import typer
from opentelemetry import environment_variables as of_the_api
from opentelemetry.sdk import environment_variables as of_the_sdk

from benchmarks.__main__ import SECTIONS
from otel_torchdist import environment_variables as ours
from otel_torchdist.cli.app import app
from tests.support.repository import REPOSITORY


def _words(text: str) -> list[str]:
    return text.split()


_COMMANDS: Final[Any] = typer.main.get_command(app)
_MAKEFILE: Final = (REPOSITORY / "Makefile").read_text()
_TARGETS: Final = frozenset(re.findall(r"^([a-z-]+)(?: [a-z-]+)*:(?: |$)", _MAKEFILE, re.MULTILINE))
_MAKE_VARIABLES: Final = frozenset(re.findall(r"^(\w+) \?=", _MAKEFILE, re.MULTILINE)) | {"PROMETHEUS_PORT"}
_OURS: Final = _words("benchmarks deploy grafana installation otel_torchdist pictures reference release tests wheels")
"""Packages of the repository that need what `make` installs."""
_STOPS: Final = frozenset("|<>;&()")
# Of docker, kubectl, curl, prometheus, pyinstaller, the figures of costs, Slurm, torchfrtrace, torchrun, wheels, a
# training script, py-spy and releases.
_FOREIGN_OPTIONS: Final = _words(
    """
    --detach --file --namespace --data-binary --fail --header --enable-feature --web.config.file
    --hidden-import --costs --signal --allow-incomplete-ranks --log-dir --max-restarts --nproc-per-node
    --rdzv-backend --rdzv-id --standalone --installed --machine --epochs --pid --native
    --tag --repository --checks-only --keep --torch-python --python --notes --nodelist --overlap --requeue
    --filename --tag-output --cpu --multi_gpu --num_processes --mpirun_hostfile --nnodes --rdzv-endpoint
    --container --create-namespace --install --output --set --show-only --target --runtime-env-json --hang
    --get --data-urlencode --web.enable-otlp-receiver --nodes --ntasks-per-node --gpus-per-node --late-rank
    """
)
# Of PyTorch, its backends and torchcomms; others that are read where jobs run; of the files in deploy, and what
# commands of a user get.
_FOREIGN_VARIABLES: Final = _words(
    """
    GLOO_SOCKET_IFNAME MASTER_ADDR MASTER_PORT NCCL_HOSTID NCCL_SOCKET_IFNAME TORCHCOMM_FR_DUMP_TEMP_FILE
    WORLD_SIZE TORCHELASTIC_RESTART_COUNT TORCH_DEVICE_BACKEND_AUTOLOAD TORCH_DISABLE_SHARE_RDZV_TCP_STORE
    TORCH_DISTRIBUTED_USE_TORCHCOMMS TORCH_FR_BUFFER_SIZE TORCH_FR_DUMP_TEMP_FILE TORCH_INCLUDE_STACK_TRACE
    TORCH_NCCL_ASYNC_ERROR_HANDLING TORCH_NCCL_BLOCKING_WAIT TORCH_NCCL_DEBUG_INFO_PIPE_FILE
    TORCH_NCCL_DEBUG_INFO_TEMP_FILE TORCH_NCCL_DUMP_ON_TIMEOUT TORCH_NCCL_ENABLE_TIMING
    TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC TORCH_NCCL_TRACE_BUFFER_SIZE TORCH_DISTRIBUTED_DEBUG
    CUDA_LAUNCH_BLOCKING K8S_JOB_NAME NCCL_DEBUG
    TORCH_NCCL_DESYNC_DEBUG CUDA_VISIBLE_DEVICES K8S_NODE_NAME MLFLOW_RUN_ID POD_NAME POD_NAMESPACE WANDB_RUN_ID
    XDG_CACHE_HOME JAEGER_QUERY_PORT TORCHDIST_STALL_VERDICT TORCHDIST_UID WEBHOOK_URL_FILE
    TORCHDIST_MACHINE_ACTION TORCHDIST_MACHINE_HOSTS
    NO_COLOR FORCE_COLOR PYTHON_GIL TORCH_DIST_USE_NCCL2 TORCH_NCCL_COORD_CHECK_MILSEC
    TORCH_NCCL_ENABLE_MONITORING DEBIAN_MIRROR DEBIAN_SUITE SLURM_JOB_ID TORCH_WATCHDOG_POLL_INTERVAL_SECS
    TORCH_WATCHDOG_HEALTH_INTERVAL_SECS TORCH_WATCHDOG_STUCK_ACTION LOCAL_RANK OMPI_COMM_WORLD_RANK
    PMIX_NAMESPACE RAY_ADDRESS RAY_DEDUP_LOGS TORCH_FR_DEBUG_INFO_PIPE_FILE
    """
)
_NO_VARIABLES: Final = re.compile(
    r"\w+_GROUPS?(_WITH_CP)?|CAP_\w+|PIDFD_\w+|DELTA_BINARY_PACKED|TIMESTAMP_NS|FULL_SHARD|NO_SHARD|SHARD_GRAD_OP|ON_STALL"
    r"|DCGM_FI_\w+|FULL_AFTER|TORCH_VERSION(_MAJOR|_MINOR)?"
)
"""Names in capitals that are none: groups of Megatron, capabilities, metrics of DCGM, and so on."""


def problems(text: str) -> list[str]:
    """Describe every mistake in the code of a page; none if all that it names exists."""
    return [problem for code in code_of(text) for check in _CHECKS for problem in check(code)]


def commands_in(text: str) -> list[list[str]]:
    """Find the invocations of `otel-torchdist` on a page."""
    return [words for code in code_of(text) for words in _invocations(code, "otel-torchdist")]


def _invocations(code: str, program: str) -> Iterator[list[str]]:
    """Yield the arguments of each invocation of a program, up to what the shell takes, a comment or a description."""
    for found in re.finditer(rf"(?<![\w./-]){re.escape(program)}(?=\s|$)(.*)", code):
        rest = re.split(r"`|\s#|(?<=\S)\s{3,}", found[1])[0]
        if re.match(r" \d", rest):  # a version of it, in a line of a log
            continue
        lexer = shlex.shlex(rest, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        lexer.commenters = ""
        words: list[str] = []
        for word in lexer:
            if _STOPS.issuperset(word):
                break
            words.append(word)
        yield words


def _of_otel_torchdist(code: str) -> Iterator[str]:
    for words in _invocations(code, "otel-torchdist"):
        if words:
            yield from _mistakes(words)


def _mistakes(words: list[str]) -> Iterator[str]:
    """Parse a command line as the command would, which may lack arguments where a sentence names it."""
    name, *arguments = words
    if name.startswith("-"):
        if name not in _options_of(_COMMANDS):
            yield f"otel-torchdist has no option {name}"
        return
    with _COMMANDS.make_context("otel-torchdist", [], resilient_parsing=True) as context:
        command = _COMMANDS.get_command(context, name)
        if command is None:
            yield f"otel-torchdist has no command {name}"
            return
        try:
            # A place that a reader fills in, such as DIRECTORY, may have to exist.
            filled = [re.sub(r"^(?:…|[A-Z]{2,})$", ".", argument) for argument in arguments]
            command.make_context(name, filled, parent=context)
        except Exception as error:
            if type(error).__name__ not in ("MissingParameter", "Exit"):  # the latter ends `--help`
                yield f"otel-torchdist {shlex.join(words)}: {error}"


def _options_of(command: Any) -> set[str]:
    return {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}


def _of_make(code: str) -> Iterator[str]:
    for words in _invocations(code, "make"):
        targets = [word for word in words if "=" not in word]
        given = dict(word.split("=", 1) for word in words if "=" in word)
        yield from (f"make has no target {target}" for target in targets if target not in _TARGETS)
        yield from (f"make has no variable {name}" for name in given if name not in _MAKE_VARIABLES)
        arguments = shlex.split(given.get("ARGS", ""))
        if "demo" in targets:
            yield from _mistakes(["demo", *arguments])
        if "bench" in targets and "--only" in arguments:
            sections = arguments[arguments.index("--only") + 1].split(",")
            yield from (f"there is no benchmark {section}" for section in sections if section not in SECTIONS)
        yield from _missing_files(arguments)


def _of_python(code: str) -> Iterator[str]:
    for python, module, rest in re.findall(r"(\S*python[\d.]*) -m ([\w.]+)(.*)", code):
        if not _exists(module):
            yield f"there is no module {module}"
        if module.partition(".")[0] in _OURS and python != ".venv/bin/python":
            yield f"{module} needs what is installed in .venv: write .venv/bin/python"
        yield from _missing_files(rest.split())


def _exists(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # its package
        return False


def _missing_files(words: list[str]) -> Iterator[str]:
    for word in words:
        if word.partition("/")[0] in _OURS and "/" in word and not (REPOSITORY / word).exists():
            yield f"there is no {word}"


def installs_from_an_index(text: str) -> bool:
    """Return whether a text has a command that installs otel-torchdist from a package index: it is on none."""
    return bool(re.search(r"\b(?:pip|uv)3?\b.* (?:install|add)\b.*\botel[-_.]torchdist\b", text))


def _of_pip(code: str) -> Iterator[str]:
    if installs_from_an_index(code):
        yield f"no index has otel-torchdist: {code}"


def _of_options(code: str) -> Iterator[str]:
    """Look at options that a sentence names alone, or with a command but without the program."""
    if "otel-torchdist" in code:
        return
    for option in re.findall(r"(?:^|(?<=\s))--[a-z][\w.-]*", code):
        if option not in _KNOWN_OPTIONS:
            yield f"no program here has an option {option}"


def _of_variables(code: str) -> Iterator[str]:
    for name in re.findall(r"(?<![\w.$/-])[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+\b(?!\*)", code):
        if name not in _KNOWN_VARIABLES and not _NO_VARIABLES.fullmatch(name):
            yield f"nothing here reads a variable {name}"


def _all_options() -> set[str]:
    with _COMMANDS.make_context("otel-torchdist", [], resilient_parsing=True) as context:
        commands = [_COMMANDS.get_command(context, name) for name in _COMMANDS.list_commands(context)]
    return {option for command in commands for option in _options_of(command)}


def _options_of_actions() -> set[str]:
    """The options of the commands in `deploy/actions`."""
    sources = [path.read_text() for path in (REPOSITORY / "deploy" / "actions").glob("*.py")]
    return {option for source in sources for option in re.findall(r'add_argument\(\s*"(--[a-z-]+)"', source)}


_KNOWN_OPTIONS: Final = {*_all_options(), *_options_of_actions(), *_FOREIGN_OPTIONS, "--help"}
_KNOWN_VARIABLES: Final = {*vars(ours), *vars(of_the_api), *vars(of_the_sdk), *_FOREIGN_VARIABLES, *_MAKE_VARIABLES}
_CHECKS: Final[tuple[Callable[[str], Iterator[str]], ...]] = (
    *(_of_otel_torchdist, _of_make, _of_python, _of_pip, _of_options, _of_variables),
)


PROGRAMS: Final = ("curl", "ncclras", "otel-torchdist", "py-spy", "torchfrtrace", "torchrun", "while")
_BLOCK: Final = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_SHELLS: Final = ("sh", "bash")
_INLINE: Final = re.compile(r"(?<!`)`([^`]+)`(?!`)")
PAGES: Final = (
    *(REPOSITORY / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "SUPPORT.md", "deploy/README.md")),
    *sorted((REPOSITORY / "docs").rglob("*.md")),
)
"""All pages with commands for users and contributors."""


def page(name: str) -> str:
    """The text of a page in `docs`."""
    return (REPOSITORY / "docs" / name).read_text()


def block_after(text: str, begin: str) -> str:
    """The content of the first block of code behind some text of a page."""
    before, found, behind = text.partition(begin)
    assert found, before[:80]
    blocks = _BLOCK.search(behind)
    assert blocks is not None
    return textwrap.dedent(blocks[3])


def commands_of(text: str) -> list[str]:
    """The commands of a page's blocks for a shell, each with the indented lines and the `done` that follow it."""
    commands: list[str] = []
    for _, language, block in _BLOCK.findall(text):
        if language not in _SHELLS:
            continue
        for line in textwrap.dedent(block).splitlines():
            if line.startswith((" ", "done")):
                commands[-1] += f"\n{line}"
            elif line:
                commands.append(line)
    return commands


def code_of(text: str) -> list[str]:
    """The code in a page's sentences and the lines of its blocks, except blocks of another language than a shell's."""
    blocks = [block for _, language, block in _BLOCK.findall(text) if language in ("", *_SHELLS)]
    sentences = _INLINE.findall(_BLOCK.sub("", text))
    return [*(" ".join(code.split()) for code in sentences), *(line for block in blocks for line in block.splitlines())]


def commands_elsewhere(text: str) -> list[str]:
    """Lines that look like commands in blocks that are not for a shell: no test would run them."""
    return [
        line
        for _, language, block in _BLOCK.findall(text)
        if language not in (*_SHELLS, "python")
        for line in block.splitlines()
        if line.strip().startswith(tuple(f"{program} " for program in PROGRAMS))
    ]
