"""`otel-torchdist profile`: where one live rank and its children spend their time."""
