"""`otel-torchdist profile`: samples a live rank and its children."""
