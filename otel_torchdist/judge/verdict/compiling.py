"""Excuses ranks that compile a model while others wait: that takes minutes, and not equally long on all ranks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from otel_torchdist.judge.verdict.verdict import Verdict
from otel_torchdist.model.code_owner import FrameOwner, owner_of
from otel_torchdist.model.names import CallSiteName
from otel_torchdist.model.snapshot import RankView, WorldSnapshot
from otel_torchdist.model.stacks import ThreadStack
from otel_torchdist.model.verdict_kinds import VerdictKind

COMPILE_NS: Final = 600_000_000_000
"""How long others may wait for a rank that is compiling."""
AGAIN: Final = 2
"""A repeated compilation at a line may take this many times as long as any rank was seen to take there before, …"""
MORE_NS: Final = 60_000_000_000
"""… or this much longer, whichever is more: the end of a compilation is not seen."""
LATER: Final = 2
"""A rank that was seen compiling may take as long from there as the waiting ranks did, not counting what they compiled,
and this many thresholds more: during the first of them it may still have been compiling."""
MAX_WAITS: Final = 64
MAX_LINES: Final = 1_024
MAX_OF_LINE: Final = 64

# Modules that run while something is compiled, and functions of modules that also run in a compiled model's steady
# state. Not all of a stack can be requested: it may be deeper than what a rank writes down.
_COMPILER: Final = re.compile(
    r"/torch/_dynamo/(convert_frame|symbolic_convert|output_graph|codegen|bytecode_\w+|side_effects)\.py:"
    r"|/torch/_dynamo/(variables/|backends/(common|registry)\.py:)"
    r"|/torch/_functorch/_aot_autograd/(graph_compile|graph_capture\w*|dispatch_and_compile_graph|jit_compile_\w+"
    r"|collect_metadata_analysis|traced_function_transforms|autograd_cache)\.py:"
    r"|/torch/_functorch/(aot_autograd|_aot_autograd/runtime_wrappers)\.py:(_*(create_aot|aot_module|aot_dispatch)|\w*compile$)"
    r"|/torch/_functorch/(partitioners|compilers)\.py:"
    r"|/torch/_inductor/compile_fx\w*\.py:\w*(compile|codegen)"
    r"|/torch/_inductor/(graph|scheduler|lowering|ir|loop_body|pattern_matcher|select_algorithm|cpp_builder|codecache"
    r"|async_compile|autotune_process|triton_bundler|cpu_vec_isa)\.py:"
    r"|/torch/_inductor/(codegen|fx_passes|kernel|compile_worker)/"
    r"|/torch/_inductor/runtime/\w+\.py:_*(precompile|benchmark|bench|autotune|coordinate_descent|make_launcher|compile)"
    r"|/torch/fx/experimental/proxy_tensor\.py:"
    r"|/triton/compiler/(?!compiler\.py)"
    r"|/triton/(compiler/compiler|runtime/(jit|autotuner|build)|backends/\w+/\w+|testing)\.py:"
    r"(\w*compile|_*(make_|ast_to_|parse|do_bench|bench|prune_configs|warmup|build))"
)
_GENERATED: Final = re.compile(r"/torchinductor_|/torch_compile_")
_MADE_UP: Final = ("<string>", "<eval_with_key>")
"""File names of code that dataclasses and torch.fx generate."""
_THREADS: Final = re.compile(r"^(MainThread|)$|^thread \d|^Dummy-")
"""The main thread, the one that received a signal, and threads that C++ has started, such as autograd's."""


@dataclass(slots=True)
class _Compilation:
    """A compilation of one rank at one line.

    Attributes:
        began_ns: When the rank was last seen doing something else.
        limit_ns: How long others may wait for it.
        seen_ns: When it was last seen compiling.
    """

    began_ns: int
    limit_ns: int
    seen_ns: int


@dataclass(frozen=True, slots=True)
class _Sighting:
    """An observation of a rank that was compiling.

    Attributes:
        seen_ns: When it was last seen compiling.
        thread: On which thread; 0 if that is not known.
        step: Its training step then.
        total_ns: How long it has compiled since its last call, as far as was seen.
    """

    seen_ns: int
    thread: int
    step: int
    total_ns: int


@dataclass(slots=True)
class _ExcusedWait:
    """A wait for ranks, some of which compile.

    Attributes:
        waited_ns: How long it has lasted, without the time in which the job was suspended.
        compiling: By tape, what the ranks were compiling at the last check.
        late: Tapes of ranks that were not compiling then; they may have only now finished.
    """

    waited_ns: int = 0
    compiling: dict[int, _Compilation] = field(default_factory=dict[int, _Compilation])
    late: frozenset[int] = frozenset()


class CompileExcuses:
    """Remembers what ranks of one run were excused for: once in full, and later for about as long as that took."""

    def __init__(self, threshold_ns: int) -> None:
        self._threshold_ns = threshold_ns
        self._waits: dict[int, _ExcusedWait] = {}
        self._known: dict[CallSiteName | None, list[_Compilation]] = {}
        self._sightings: dict[int, _Sighting] = {}
        self._read_ns: dict[int, int] = {}

    def note(self, world: WorldSnapshot) -> None:
        """Record which ranks compile, according to stacks that are newer than the last call of that thread."""
        here = {view.nonce for view in world.ranks.values()}
        self._sightings = {nonce: seen for nonce, seen in self._sightings.items() if nonce in here}
        self._read_ns = {nonce: asked_ns for nonce, asked_ns in self._read_ns.items() if nonce in here}
        for view in world.ranks.values():
            asked_ns = view.stacks.asked_ns if view.stacks is not None and view.stacks.threads is not None else 0
            read_ns = self._read_ns.get(view.nonce, 0)
            if asked_ns <= read_ns:
                continue
            self._read_ns[view.nonce] = asked_ns
            thread = _compiling_thread(view)
            called_ns = last_call_ns(view, thread.thread) if thread is not None else 0
            if thread is not None and called_ns <= asked_ns:
                known = self._sightings.get(view.nonce)
                before_ns = known.total_ns if known is not None and known.seen_ns >= called_ns else 0
                total_ns = before_ns + asked_ns - max(read_ns, called_ns)
                self._sightings[view.nonce] = _Sighting(world.taken_ns, thread.thread, view.step, total_ns)

    def excuse(self, world: WorldSnapshot, verdict: Verdict, age_ns: int | None = None) -> bool:
        """Whether the ranks that hold the others up are compiling within their limits, or may have been until recently.

        Args:
            world: The snapshot.
            verdict: The verdict that would be reported.
            age_ns: How long the wait has counted since it was last excused; None for its whole duration.
        """
        if not verdict.ranks or verdict.kind is not VerdictKind.ABSENT:
            return False
        named = [world.ranks[rank] for rank in verdict.ranks if rank in world.ranks]
        if len(named) < len(verdict.ranks):
            return False
        self.note(world)
        wait = self._wait(verdict.since_ns)
        was_compiling = bool(wait.compiling)
        found = [(view, thread) for view in named if (thread := _compiling_thread(view)) is not None]
        wait.compiling = {
            view.nonce: self._see(wait.compiling.get(view.nonce), view, thread, world.taken_ns)
            for view, thread in found
        }
        others = [view for view in named if view.nonce not in wait.compiling]
        due_ns = {view.nonce: due for view in others if (due := self._due_ns(view, world, verdict)) is not None}
        if not (wait.compiling or was_compiling or due_ns):
            return False
        wait.waited_ns += world.taken_ns - verdict.since_ns if age_ns is None else age_ns
        before, wait.late = wait.late, frozenset(view.nonce for view in others if view.nonce not in due_ns)
        is_in_time = all(wait.waited_ns <= one.limit_ns for one in wait.compiling.values())
        return is_in_time and all(world.taken_ns <= due for due in due_ns.values()) and not before & wait.late

    def _due_ns(self, view: RankView, world: WorldSnapshot, verdict: Verdict) -> int | None:
        """When a rank that has compiled since its last call must arrive; None for one that has not compiled."""
        sighting = self._sightings.get(view.nonce)
        # Other threads call too, as autograd's does for DDP: of those calls the step tells which came later.
        if sighting is None or sighting.step < view.step or sighting.seen_ns < last_call_ns(view, sighting.thread):
            return None
        waiting = [world.ranks[rank] for rank in verdict.waiting if rank in world.ranks]
        usual_ns = max((self._way_ns(one) for one in waiting), default=0)
        return sighting.seen_ns + min(usual_ns, COMPILE_NS) + LATER * self._threshold_ns

    def _way_ns(self, view: RankView) -> int:
        """How long a waiting rank took from its last call to where it waits, without what it compiled meanwhile."""
        entered_ns = max((operation.record.entered_ns for operation in view.open), default=view.created_ns)
        ended_ns = (view.last.record.completed_ns or 0) if view.last is not None else 0
        since_ns = max(view.created_ns, ended_ns if ended_ns <= entered_ns else 0)
        sighting = self._sightings.get(view.nonce)
        has_compiled = sighting is not None and since_ns <= sighting.seen_ns <= entered_ns
        return max(entered_ns - since_ns - (sighting.total_ns if sighting is not None and has_compiled else 0), 0)

    def _wait(self, since_ns: int) -> _ExcusedWait:
        wait = self._waits.get(since_ns)
        if wait is None:
            if len(self._waits) >= MAX_WAITS:
                del self._waits[next(iter(self._waits))]
            wait = self._waits[since_ns] = _ExcusedWait()
        return wait

    def _see(self, known: _Compilation | None, view: RankView, thread: ThreadStack, now_ns: int) -> _Compilation:
        """The compilation that a rank is in: the known one, or a new one with its limit."""
        if known is not None:
            known.seen_ns = now_ns
            return known
        line, began_ns = _line(thread.frames), last_call_ns(view, thread.thread)
        if len(self._known) >= MAX_LINES and line not in self._known:
            self._known.clear()
        others = self._known.setdefault(line, [])
        # Compilations that are still running there do not show how long they take.
        earlier = [one.seen_ns - one.began_ns for one in others if one.seen_ns <= began_ns]
        longest_ns = max(earlier, default=COMPILE_NS)
        found = _Compilation(began_ns, min(max(AGAIN * longest_ns, longest_ns + MORE_NS), COMPILE_NS), now_ns)
        del others[: 1 - MAX_OF_LINE]
        others.append(found)
        return found


def _compiling_thread(view: RankView) -> ThreadStack | None:
    """The thread of a rank that compiles; None if there is none."""
    threads = (view.stacks.threads or ()) if view.stacks is not None else ()
    return next((thread for thread in threads if _THREADS.search(thread.name) and is_compiling(thread)), None)


def last_call_ns(view: RankView, thread: int = 0) -> int:
    """When a rank last entered or left a collective: what it compiles now, it began to compile after that.

    Args:
        view: The rank.
        thread: The thread whose calls count, as far as their threads are known; 0 for any.
    """
    calls = [operation.record for operation in (*view.open, view.last) if operation is not None]
    own = [record for record in calls if not thread or record.thread == thread]
    return max([view.created_ns, *(max(record.entered_ns, record.completed_ns or 0) for record in own)])


def is_compiling(thread: ThreadStack) -> bool:
    """Whether a thread runs the compiler, in a frame inside the innermost line of the user's code.

    Calls of a compiled model also pass through the compiler's packages, and what the user's code in it does is not
    compilation.
    """
    for frame in thread.frames:
        if _is_users(frame) or _GENERATED.search(frame.file):
            return False
        if _COMPILER.search(f"{frame.file}:{frame.function.rpartition('.')[2]}"):
            return True
    return False


def _line(frames: Sequence[CallSiteName]) -> CallSiteName | None:
    return next((frame for frame in frames if _is_users(frame)), None)


def _is_users(frame: CallSiteName) -> bool:
    return owner_of(frame.file, frame.function) is FrameOwner.USER and not frame.file.startswith(_MADE_UP)
