"""Ranks that compile a model while others wait for them: that takes minutes, and not equally long on all ranks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from otel_torchdist.stall.frames import FrameOwner, owner_of
from otel_torchdist.stall.verdict import Verdict, VerdictKind
from otel_torchdist.stall.world import RankView, WorldSnapshot
from otel_torchdist.tape.records import CallSiteName
from otel_torchdist.tape.stacks import ThreadStack

COMPILE_NS: Final = 600_000_000_000
"""How long others may wait for a rank that compiles."""
AGAIN: Final = 2
"""Who compiles once more at a line may take so many times as long as any rank was seen to take there before, …"""
MORE_NS: Final = 60_000_000_000
"""… or so much longer: the end of a compilation is not seen."""
MAX_WAITS: Final = 64
MAX_LINES: Final = 1_024
MAX_OF_LINE: Final = 64

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


@dataclass(slots=True)
class _Compilation:
    """One rank compiles at one line.

    Attributes:
        began_ns: When it was last seen to do something else.
        limit_ns: How long others may wait for it.
        seen_ns: When it was last seen to compile.
    """

    began_ns: int
    limit_ns: int
    seen_ns: int


@dataclass(slots=True)
class _ExcusedWait:
    """A wait for ranks of which some compile.

    Attributes:
        waited_ns: How long it has lasted, without the time in which the job was suspended.
        compiling: What the ranks compiled when they were last looked at, by their tapes.
        late: Tapes of ranks that did not compile then; they may just have come to the end of it.
    """

    waited_ns: int = 0
    compiling: dict[int, _Compilation] = field(default_factory=dict[int, _Compilation])
    late: frozenset[int] = frozenset()


class CompileExcuses:
    """Remembers of one run what ranks were excused for: once in full, and later for about as long as that took."""

    def __init__(self) -> None:
        """Nothing has been excused."""
        self._waits: dict[int, _ExcusedWait] = {}
        self._known: dict[CallSiteName | None, list[_Compilation]] = {}

    def excuse(self, world: WorldSnapshot, verdict: Verdict, age_ns: int | None = None) -> bool:
        """Whether ranks that hold the others up are seen to compile and may, and the others can have done so lately.

        Args:
            world: The picture.
            verdict: What would be reported.
            age_ns: How long the wait has counted since it was last excused; None for all of its time.
        """
        if not verdict.ranks or verdict.kind is not VerdictKind.ABSENT:
            return False
        wait = self._wait(verdict.since_ns)
        was_compiling, known = bool(wait.compiling), self._look_at(world, verdict, wait)
        if not known or not (wait.compiling or was_compiling):
            return False
        wait.waited_ns += world.taken_ns - verdict.since_ns if age_ns is None else age_ns
        before, wait.late = wait.late, known - wait.compiling.keys()
        is_in_time = all(wait.waited_ns <= one.limit_ns for one in wait.compiling.values())
        return is_in_time and not before & wait.late

    def note(self, world: WorldSnapshot, verdict: Verdict) -> None:
        """Remember what ranks compile that hold the others up, without a need to excuse them yet."""
        self._look_at(world, verdict, self._wait(verdict.since_ns))

    def _look_at(self, world: WorldSnapshot, verdict: Verdict, wait: _ExcusedWait) -> frozenset[int]:
        """See what the ranks in a verdict compile; returns the tapes of all of them, none where one is not seen."""
        named = [world.ranks[rank] for rank in verdict.ranks if rank in world.ranks]
        if len(named) < len(verdict.ranks):
            return frozenset()
        found = [(view, thread) for view in named if (thread := _compiling_thread(view)) is not None]
        wait.compiling = {
            view.nonce: self._see(wait.compiling.get(view.nonce), view, thread, world.taken_ns)
            for view, thread in found
        }
        return frozenset(view.nonce for view in named)

    def _wait(self, since_ns: int) -> _ExcusedWait:
        wait = self._waits.get(since_ns)
        if wait is None:
            if len(self._waits) >= MAX_WAITS:
                del self._waits[next(iter(self._waits))]
            wait = self._waits[since_ns] = _ExcusedWait()
        return wait

    def _see(self, known: _Compilation | None, view: RankView, thread: ThreadStack, now_ns: int) -> _Compilation:
        """A compilation, as it was seen at the look before or as it begins to be seen."""
        if known is not None:
            known.seen_ns = now_ns
            return known
        line, began_ns = _line(thread.frames), _last_call_ns(view)
        if len(self._known) >= MAX_LINES and line not in self._known:
            self._known.clear()
        others = self._known.setdefault(line, [])
        # Whatever else compiles there now says nothing about how long that takes.
        earlier = [one.seen_ns - one.began_ns for one in others if one.seen_ns <= began_ns]
        longest_ns = max(earlier, default=COMPILE_NS)
        found = _Compilation(began_ns, min(max(AGAIN * longest_ns, longest_ns + MORE_NS), COMPILE_NS), now_ns)
        del others[: 1 - MAX_OF_LINE]
        others.append(found)
        return found


def _compiling_thread(view: RankView) -> ThreadStack | None:
    """The thread of a rank that compiles; None when it does not."""
    threads = (view.stacks.threads or ()) if view.stacks is not None else ()
    return next((thread for thread in threads if _THREADS.search(thread.name) and is_compiling(thread)), None)


def _last_call_ns(view: RankView) -> int:
    """When a rank last came to a collective, or out of one: what it compiles it has begun since."""
    entered_ns = max((operation.record.entered_ns for operation in view.open), default=0)
    ended_ns = view.last.record.completed_ns or 0 if view.last is not None else 0
    return max(view.created_ns, entered_ns, ended_ns)


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
