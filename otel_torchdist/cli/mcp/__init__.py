"""`otel-torchdist mcp`: recorded runs as tools of an assistant, over the Model Context Protocol."""
