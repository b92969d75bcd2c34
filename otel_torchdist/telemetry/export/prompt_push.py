"""Pushes metrics at once when there is news: where a container ends with its ranks, the next interval never comes."""

from __future__ import annotations

import threading

from opentelemetry.metrics import MeterProvider
from opentelemetry.sdk.metrics import MeterProvider as SdkMeterProvider

from otel_torchdist import guard

PUSH_MS = 10_000


class PromptPush:
    """Has a meter provider export outside of its intervals, on a thread of its own."""

    def __init__(self, provider: MeterProvider | None) -> None:
        """Push through `provider`; None, or one that is not the SDK's, pushes nothing."""
        self._provider = provider if isinstance(provider, SdkMeterProvider) else None
        self._wanted = threading.Event()
        self._thread: threading.Thread | None = None

    def request(self) -> None:
        """Push soon; returns at once. Requests during a push are answered by one more."""
        if self._provider is None:
            return
        self._wanted.set()
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="otel-torchdist push", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # Python 3.12 starts none while it ends; closing the provider exports, too
                return
            self._thread = thread

    def _run(self) -> None:
        while self._provider is not None:
            self._wanted.wait()
            self._wanted.clear()
            with guard.guarded("pushing metrics"):
                self._provider.force_flush(PUSH_MS)
