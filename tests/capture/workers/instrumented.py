"""One rank that switches itself on and off as a program does, twice each time, with its own provider."""

from __future__ import annotations

import torch
import torch.distributed as dist
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from otel_torchdist import TorchDistInstrumentor
from tests.support.ranks.rank import join, say

exporter = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))


def spans() -> list[str]:
    """Names of the operations' spans since the last call."""
    names = [span.name for span in exporter.get_finished_spans() if "(" not in span.name]
    exporter.clear()
    return names


instrumentor = TorchDistInstrumentor()
instrumentor.uninstrument()
instrumentor.instrument(tracer_provider=provider)
TorchDistInstrumentor().instrument(tracer_provider=provider)
join()
for _ in range(3):
    dist.all_reduce(torch.ones(1))
work = dist.all_reduce(torch.ones(1), async_op=True)
work.wait()
instrumentor.uninstrument()
instrumentor.uninstrument()
say(first=spans())
dist.barrier()
instrumentor.instrument(tracer_provider=provider)
dist.all_gather([torch.ones(1)], torch.ones(1))
dist.destroy_process_group()
instrumentor.uninstrument()
say(second=spans())
