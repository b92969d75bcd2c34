"""What ranks have saved in a stall, and whether it fits together, as a sentence."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from otel_torchdist.model.rescue import Rescue, RescueState
from otel_torchdist.naming import name_ranks


def _outcome(state: RescueState) -> str:
    match state:
        case RescueState.NONE:
            return "did not answer"
        case RescueState.RUNNING:
            return "had not ended"
        case RescueState.SAVED:
            return "has saved"
        case RescueState.IN_OPTIMIZER:
            return "refused, in the step of an optimizer"
        case RescueState.RAISED:
            return "failed, as its log shows"
        case RescueState.WENT_ON:
            return "went on meanwhile"
        case RescueState.TOO_LATE:
            return "took too long"
        case RescueState.DEAD:
            return "died before"


def describe_rescue(rescues: Mapping[int, Rescue], world_size: int) -> str:
    """State which ranks are rescued, and whether a restart can use that.

    Args:
        rescues: By rank, of any node.
        world_size: Number of ranks of the run.

    Returns:
        `rescued: ranks 0-7 at step 1200`, or `rescued, but not usable: …` with what is wrong.
    """
    steps: dict[int, list[int]] = defaultdict(list)
    others: dict[str, list[int]] = defaultdict(list)
    for rank in sorted({*range(world_size), *rescues}):
        rescue = rescues.get(rank)
        if rescue is not None and rescue.state is RescueState.SAVED:
            steps[rescue.step].append(rank)
        else:
            others["is not seen" if rescue is None else _outcome(rescue.state)].append(rank)
    # The step that most ranks have saved comes first: the others are what is wrong.
    saved = [
        f"{name_ranks(ranks)} at step {step}" for step, ranks in sorted(steps.items(), key=lambda one: -len(one[1]))
    ]
    left = [f"{name_ranks(ranks)} {why}" for why, ranks in others.items()]
    title = "rescued" if len(steps) == 1 and not others else "rescued, but not usable" if steps else "not rescued"
    return f"{title}: {'; '.join([*saved, *left])}"
