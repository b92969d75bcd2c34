"""Runs a program once as it is, once recorded, and once without each symbol of the table that it uses.

Arguments: the program, and a folder for tapes. Each run is a forked child: torch is imported once, with all modules
that the first run has imported besides. Prints a line of JSON for each run. Symbols that torch needs get another name
in our table instead, as if torch had renamed them.

Children exit as programs do, but the garbage collector skips what they have inherited: else the last collection copies
all pages of torch's objects, which takes a second of CPU time for each child.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import logging
import os
import sys
import tempfile
import traceback
import warnings
from pathlib import Path

import torch
import torch._dynamo.trace_rules
import torch.distributed.fsdp._runtime_utils
import torch.distributed.fsdp._unshard_param_utils

from otel_torchdist import environment_variables as env
from otel_torchdist.capture.upstream.symbol import TorchSymbol
from tests.capture.upstream.needed import NEEDED_BY_TORCH
from tests.capture.upstream.programs_of import SYMBOLS_OF
from tests.capture.upstream.workers.programs import PROGRAMS

GONE = "_of_another_torch"


def main() -> None:
    """Run all."""
    table, tapes = sys.argv[1:]
    for number, symbol in enumerate((None, *SYMBOLS_OF[table])):
        for is_recorded in (False, True) if symbol is None else (True,):
            folder = Path(tapes) / str(number)
            folder.mkdir(parents=True, exist_ok=True)
            os.environ[env.OTEL_PYTHON_TORCHDIST_TAPE_DIR] = str(folder)
            report(table, symbol, is_recorded)


def report(table: str, symbol: TorchSymbol | None, is_recorded: bool) -> None:
    """Run the program in a child, and print what came of it."""
    folder = Path(tempfile.mkdtemp())
    results, errors = folder / "results", folder / "errors"
    gc.freeze()
    process = os.fork()
    if process == 0:
        in_child(table, symbol, is_recorded, results, errors)
    _, status = os.waitpid(process, 0)
    result = json.loads(results.read_text()) if results.exists() else {}
    for name in result.pop("modules", ()):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    result["symbol"], result["is_recorded"] = symbol.path if symbol is not None else "", is_recorded
    result["tapes"] = len(list(Path(os.environ[env.OTEL_PYTHON_TORCHDIST_TAPE_DIR]).rglob("*.tape")))
    result["exit"], result["errors"] = os.waitstatus_to_exitcode(status), errors.read_text()
    print(json.dumps(result), flush=True)


def in_child(table: str, symbol: TorchSymbol | None, is_recorded: bool, results: Path, errors: Path) -> None:
    """Run the program without a symbol, and exit as a program does."""
    file = os.open(errors, os.O_WRONLY | os.O_CREAT)
    os.dup2(file, 1)
    os.dup2(file, 2)
    messages: list[str] = []
    code = 1
    try:
        if is_recorded:
            record(symbol, messages)
        loss = PROGRAMS[table]()
        from otel_torchdist.launch.switch import SWITCH

        SWITCH.turn_off()
        modules = [] if is_recorded else [name for name in sys.modules if not name.startswith("otel_torchdist")]
        results.write_text(json.dumps({"loss": loss, "messages": messages, "modules": modules}))
        code = 0
    except BaseException:
        traceback.print_exc()
    sys.exit(code)


def record(symbol: TorchSymbol | None, messages: list[str]) -> None:
    """Switch recording on in a torch without the symbol, as `import torch` does."""
    if symbol is not None:
        take_away(symbol)

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(record.getMessage())

    logging.getLogger("otel_torchdist").addHandler(Keep())
    os.environ[env.OTEL_PYTHON_TORCHDIST_ENABLED] = "true"
    from otel_torchdist.autoload import autoload

    autoload()


def take_away(symbol: TorchSymbol) -> None:
    """Take a symbol from torch, or if torch needs it, look for another name."""
    if symbol.of_instances or symbol.path in NEEDED_BY_TORCH:
        object.__setattr__(symbol, "name", symbol.name + GONE)
    else:
        classes = getattr(symbol.holder, "__mro__", (symbol.holder,))
        delattr(next(owner for owner in classes if symbol.name in vars(owner)), symbol.name)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    main()
