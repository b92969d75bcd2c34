"""Ranks that compile a model while others wait for them: that takes minutes, and not equally long on all ranks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from otel_torchdist.stall.frames import FrameOwner, owner_of
from otel_torchdist.stall.verdict import Verdict, VerdictKind
from otel_torchdist.stall.world import RankView, WorldSnapshot
from otel_torchdist.tape.records import CallSiteName
from otel_torchdist.tape.stacks import ThreadStack

COMPILE_NS: Final = 600_000_000_000
"""How long others may wait for a rank that compiles."""
AGAIN: Final = 2
"""A rank that compiles once more at the same line may take so many times as long as before."""
MAX_SITES: Final = 4_096

# Modules that run while something is compiled, and functions of modules that run in a compiled model's steady state
# too. All of a stack cannot be asked for: it may be deeper than what a rank writes down.
_COMPILER: Final = re.compile(
    r"/torch/_dynamo/(convert_frame|symbolic_convert|output_graph|codegen|bytecode_\w+|side_effects)\.py:"
    r"|/torch/_dynamo/(variables/|backends/(common|registry)\.py:)"
    r"|/torch/_functorch/_aot_autograd/(graph_compile|graph_capture\w*|dispatch_and_compile_graph|jit_compile_\w+"
    r"|collect_metadata_analysis|traced_function_transforms|autograd_cache)\.py:"
    r"|/torch/_functorch/(aot_autograd|_aot_autograd/runtime_wrappers)\.py:_*(create_aot|aot_module|aot_dispatch|\w*compile$)"
    r"|/torch/_functorch/(partitioners|compilers)\.py:"
    r"|/torch/_inductor/compile_fx\w*\.py:\w*(compile|codegen)"
    r"|/torch/_inductor/(graph|scheduler|lowering|ir|loop_body|pattern_matcher|select_algorithm|cpp_builder|codecache"
    r"|async_compile|autotune_process|triton_bundler|cpu_vec_isa)\.py:"
    r"|/torch/_inductor/(codegen|fx_passes|kernel|compile_worker)/"
    r"|/torch/_inductor/runtime/\w+\.py:_*(precompile|benchmark|bench|autotune|coordinate_descent|make_launcher|compile)"
    r"|/torch/fx/experimental/proxy_tensor\.py:"
    r"|/triton/compiler/(?!compiler\.py)"
    r"|/triton/(compiler/compiler|runtime/(jit|autotuner|build)|backends/\w+/\w+|testing)\.py:_*"
    r"(\w*compile|make_|ast_to_|parse|do_bench|bench|prune_configs|warmup|build)"
)
_GENERATED: Final = re.compile(r"/torchinductor_|/torch_compile_")
_MADE_UP: Final = ("<string>", "<eval_with_key>")
"""Files of code that dataclasses and torch.fx make up."""
_THREADS: Final = re.compile(r"^(MainThread|)$|^thread \d|^Dummy-")
"""The main thread, the one that a signal came to, and threads that C++ has started, such as autograd's."""

_Site: TypeAlias = tuple[int, CallSiteName | None]


@dataclass(slots=True)
class _Excused:
    """A wait for a rank that compiles at one line.

    Attributes:
        since_ns: When the first rank began to wait for it.
        longest_ns: How long such waits have lasted at least.
        limit_ns: How long this one may last.
    """

    since_ns: int
    longest_ns: int
    limit_ns: int


class CompileExcuses:
    """Remembers of one run which lines ranks have been excused for: once in full, and later as long as that took."""

    def __init__(self) -> None:
        """Nothing has been excused."""
        self._known: dict[_Site, _Excused] = {}

    def excuse(self, world: WorldSnapshot, verdict: Verdict) -> bool:
        """Whether all ranks that hold the others up are seen to compile, and may."""
        if not verdict.ranks or verdict.kind is not VerdictKind.ABSENT:
            return False
        sites = [_compiles_at(world.ranks[rank]) if rank in world.ranks else None for rank in verdict.ranks]
        known = [site for site in sites if site is not None]
        if len(known) < len(verdict.ranks):
            return False
        waited_ns = world.taken_ns - verdict.since_ns
        return all([self._may(site, verdict.since_ns, waited_ns) for site in known])

    def _may(self, site: _Site, since_ns: int, waited_ns: int) -> bool:
        excused = self._known.get(site)
        if excused is None:
            if len(self._known) >= MAX_SITES:
                self._known.clear()
            excused = self._known[site] = _Excused(since_ns, 0, COMPILE_NS)
        elif excused.since_ns != since_ns:
            excused.since_ns, excused.limit_ns = since_ns, min(AGAIN * excused.longest_ns, COMPILE_NS)
        if waited_ns > excused.limit_ns:
            return False
        excused.longest_ns = max(excused.longest_ns, waited_ns)
        return True


def _compiles_at(view: RankView) -> _Site | None:
    """Where a rank compiles: its tape and the line of the user's; None when it does not."""
    for thread in (view.stacks.threads or ()) if view.stacks is not None else ():
        if _THREADS.search(thread.name) and is_compiling(thread):
            return view.nonce, _line(thread.frames)
    return None


def is_compiling(thread: ThreadStack) -> bool:
    """Whether a thread runs the compiler: inward of the innermost line that is the user's.

    Calls of a compiled model lead through the compiler's packages too, and what the user's code in it does is no
    compilation.
    """
    for frame in thread.frames:
        if _is_users(frame):
            return False
        if _COMPILER.search(f"{frame.file}:{frame.function.rpartition('.')[2]}"):
            return True
    return False


def _line(frames: Sequence[CallSiteName]) -> CallSiteName | None:
    return next((frame for frame in frames if _is_users(frame) and not _GENERATED.search(frame.file)), None)


def _is_users(frame: CallSiteName) -> bool:
    return owner_of(frame.file) is FrameOwner.USER and not frame.file.startswith(_MADE_UP)
