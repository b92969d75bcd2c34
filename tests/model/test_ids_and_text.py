"""Ids of traces and spans, lists of ranks, and printable text."""

import itertools

from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.context import Context
from opentelemetry.sdk.trace.sampling import TraceIdRatioBased

from otel_torchdist.model import ids
from otel_torchdist.model.text import MAX_RANKS_TEXT, MemberRank, compress_ranks, name_ranks, readable

RUN = 0xFEDCBA98765432100123456789ABCDEF


def test_ids_are_fixed() -> None:
    """Ranks share a trace without communicating: ids depend only on their inputs, in this version and later ones."""
    assert ids.trace_id_of_step(RUN, 7) == 0x830C38250BCC0C27BD6FAE486590AD5E
    assert ids.operation_span_id(5, 9) == 0x56DCBAC8BF4B404D


def test_ids_are_unique() -> None:
    """Operations, anchors, markers and bars of stalls never share an id, even with equal numbers."""
    numbers = range(30)
    spans = [ids.operation_span_id(nonce, number) for nonce, number in itertools.product((1, 2), numbers)]
    spans += [ids.anchor_span_id(nonce, step, part) for nonce, step, part in itertools.product((1, 2), numbers, (0, 1))]
    spans += [ids.marker_span_id(nonce, part, nth) for nonce, part, nth in itertools.product((1, 2), numbers, (0, 1))]
    spans += [ids.stall_span_id(RUN, "1", epoch, bar) for epoch in (1, 11) for bar in ("root", "1 rank", "rank 1")]
    assert len(set(spans)) == len(spans)
    assert all(0 < span < 2**64 for span in spans)
    traces = [ids.trace_id_of_step(run, step) for run, step in itertools.product((1, 11, RUN), numbers)]
    traces += [
        ids.stall_trace_id(RUN, "1"),
        ids.stall_trace_id(RUN, "11"),
        ids.lone_run_id(1),
        ids.lone_run_id(2),
    ]
    assert len(set(traces)) == len(traces)
    assert all(0 < trace < 2**128 for trace in traces)


def test_the_standard_ratio_sampler_keeps_its_ratio_of_steps() -> None:
    """The SDK's ratio sampler looks at the low 64 bits; consecutive steps must spread evenly there."""
    for ratio in (0.5, 0.1):
        sampler = TraceIdRatioBased(ratio)
        kept = sum(
            sampler.should_sample(Context(), ids.trace_id_of_step(RUN, step), "step").decision.is_sampled()
            for step in range(4_000)
        )
        assert abs(kept / 4_000 - ratio) < 0.03


def expand(text: str) -> set[int]:
    """Return the ranks in a compressed list."""
    ranks: set[int] = set()
    for part in text.split(",") if text else ():
        first, _, last = part.partition("-")
        ranks.update(range(int(first), int(last or first) + 1))
    return ranks


@given(st.sets(st.integers(0, 40)))
def test_nothing_is_lost(ranks: set[int]) -> None:
    """A list that is not cut contains exactly its ranks."""
    assert expand(compress_ranks(ranks)) == ranks


def test_form() -> None:
    """Neighbors form a range, in ascending order, for any order and repeats of the input."""
    assert compress_ranks([16, 1, 0, 2, 2]) == "0-2,16"
    assert compress_ranks(range(4096)) == "0-4095"
    assert compress_ranks([]) == ""


@given(st.sets(st.integers(0, 1_000_000), min_size=60, max_size=80))
def test_long_ranges_are_cut(ranks: set[int]) -> None:
    """A text that would be too long keeps whole ranges and counts the rest."""
    text = compress_ranks(ranks)
    if "more" not in text:
        assert expand(text) == ranks
        return
    kept, _, rest = text.partition(",… (")
    assert len(kept) <= MAX_RANKS_TEXT
    assert expand(kept) < ranks
    assert len(expand(kept)) + int(rest.removesuffix(" more)")) == len(ranks)


def test_processes_of_other_worlds() -> None:
    """Processes of other worlds are numbers like ranks, and have labels in sentences."""
    engine, other = MemberRank(4, "1 of transfer"), MemberRank(5, "2 of transfer")
    assert compress_ranks([0, 1, engine, other]) == "0-1,4-5"
    assert name_ranks([engine]) == f"rank {engine}" == "rank 1 of transfer"
    assert name_ranks([0, 1, engine, other]) == "ranks 0-1 and rank 1 of transfer and rank 2 of transfer"
    assert name_ranks([MemberRank(number, f"{number} of all") for number in range(6)]).endswith("3 of all and 2 more")


def test_readable_text() -> None:
    """Readable text cannot control a terminal, begin a line, change direction, or fail to be encoded."""
    for text in ("plain", "eval_模型", "a b", "/home/é.py"):
        assert readable(text) == text
    forged = readable("x\n12:00 \x1b[31mrank 3\u202e \u2028 \udcff \x9b \u200b")
    assert forged == r"x\n12:00 \x1b[31mrank 3\u202e \u2028 \udcff \x9b \u200b"
    forged.encode("ascii")
    assert len(readable("a" * 100_000)) < 10_000
