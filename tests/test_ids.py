"""Ids of traces and spans."""

import itertools

from opentelemetry.context import Context
from opentelemetry.sdk.trace.sampling import TraceIdRatioBased

from otel_torchdist import naming as ids

RUN = 0xFEDCBA98765432100123456789ABCDEF


def test_ids_of_a_step_are_the_same_wherever_they_are_computed() -> None:
    """Ranks share a trace without communicating: the ids are fixed by their inputs, in this version and later ones."""
    assert ids.trace_id_of_step(RUN, 7) == 0x830C38250BCC0C27BD6FAE486590AD5E
    assert ids.operation_span_id(5, 9) == 0x56DCBAC8BF4B404D


def test_everything_has_an_id_of_its_own() -> None:
    """Operations, anchors, markers and bars of stalls never share an id, even with equal numbers."""
    numbers = range(30)
    spans = [ids.operation_span_id(nonce, number) for nonce, number in itertools.product((1, 2), numbers)]
    spans += [ids.anchor_span_id(nonce, step, part) for nonce, step, part in itertools.product((1, 2), numbers, (0, 1))]
    spans += [ids.marker_span_id(nonce, part, nth) for nonce, part, nth in itertools.product((1, 2), numbers, (0, 1))]
    spans += [ids.stall_span_id(RUN, "1", epoch, bar) for epoch in (1, 11) for bar in ("root", "1 rank", "rank 1")]
    assert len(set(spans)) == len(spans)
    assert all(0 < span < 2**64 for span in spans)
    traces = [ids.trace_id_of_step(run, step) for run, step in itertools.product((1, 11, RUN), numbers)]
    traces += [ids.stall_trace_id(RUN, "1"), ids.stall_trace_id(RUN, "11"), ids.lone_run_id(1), ids.lone_run_id(2)]
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
