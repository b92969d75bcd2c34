"""`otel-torchdist export`: writes recorded calls in the formats of other tools."""
