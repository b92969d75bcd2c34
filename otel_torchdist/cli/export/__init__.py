"""`otel-torchdist export`: writes what tapes hold in formats that other tools open."""
