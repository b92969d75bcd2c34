"""`otel-torchdist reproduce`: a script that hangs as a run did, to be attached to an issue."""
