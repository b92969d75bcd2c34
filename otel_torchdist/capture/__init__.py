"""Records c10d calls on the tape. The only package that imports torch; it never imports OpenTelemetry."""
