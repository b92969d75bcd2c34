"""From c10d calls to the tape. The only package that imports torch; it never imports OpenTelemetry."""
