"""Puts a verdict into words, so that it can be passed on without the picture that it rests on."""

from __future__ import annotations

from otel_torchdist.stall import attributes
from otel_torchdist.stall.events import Incident, Ruling
from otel_torchdist.stall.sentence import sentence
from otel_torchdist.stall.verdict import Verdict


def ruling_of(verdict: Verdict, incident: Incident, epoch: int, now_ns: int) -> Ruling:
    """The words for a verdict.

    Args:
        verdict: With places, see `locate`.
        incident: The incident to which it belongs.
        epoch: See `Ruling`.
        now_ns: Monotonic time.
    """
    age_s = (now_ns - verdict.since_ns) / 1e9
    found = attributes.of_verdict(verdict, incident.run, age_s)
    return Ruling(incident, epoch, verdict.site, sentence(verdict, age_s), found)
