"""Symbols of torch with which our functions stay invisible to `torch.compile`."""

from __future__ import annotations

from typing import Final

from otel_torchdist.capture.upstream.symbol import TorchSymbol

_EVAL_FRAME: Final = "torch._C._dynamo.eval_frame"
_BREAKS_GRAPHS: Final = "compiled code has more graph breaks than without recording"

SKIP_CODE: Final = TorchSymbol(
    _EVAL_FRAME, "set_code_exec_strategy", "makes Dynamo run our functions without tracing them", _BREAKS_GRAPHS
)
FRAME_ACTION: Final = TorchSymbol(_EVAL_FRAME, "_FrameAction", "an argument of the previous function", _BREAKS_GRAPHS)
FRAME_STRATEGY: Final = TorchSymbol(
    _EVAL_FRAME, "_FrameExecStrategy", "an argument of the previous function", _BREAKS_GRAPHS
)
SKIPPING: Final = (SKIP_CODE, FRAME_ACTION, FRAME_STRATEGY)
DYNAMO_RULES: Final = TorchSymbol(
    "torch._dynamo.trace_rules",
    "get_torch_obj_rule_map",
    "Dynamo's rule for `torch.autograd.backward`, which our replacement inherits",
    _BREAKS_GRAPHS,
)

SYMBOLS: Final = tuple(value for value in vars().values() if isinstance(value, TorchSymbol))
